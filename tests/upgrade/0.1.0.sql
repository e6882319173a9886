--
-- PostgreSQL database dump
--


-- Dumped from database version 15.20 (Debian 15.20-0+deb12u1)
-- Dumped by pg_dump version 15.20 (Debian 15.20-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Data for Name: admission; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.admission VALUES (1, 'a', 'once', 28, '2026-12-01 13:26:21.655888+00');


--
-- Data for Name: claim; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.claim VALUES (6, 2, 'Default', 168, '2026-12-01 13:26:21.664341+00', 'be5525d8-35b1-8d97-8000-00000000660a', '2026-12-01 13:27:21.664341+00');
INSERT INTO queen_mq.claim VALUES (7, 2, 'Default', 169, '2026-12-01 13:26:21.664984+00', 'be59e55e-01d3-8cb8-8000-000000007cb7', '2026-12-01 13:27:21.664984+00');
INSERT INTO queen_mq.claim VALUES (8, 2, 'Default', 170, '2026-12-01 13:26:21.665698+00', 'be5a4c45-d220-8140-8000-00000000899b', '2026-12-02 01:26:21.665698+00');


--
-- Data for Name: consumer_group; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.consumer_group OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 'billing', '2026-12-01 13:26:21.653086+00', '\x010000000000', 0, 0, NULL);
INSERT INTO queen_mq.consumer_group OVERRIDING SYSTEM VALUE VALUES (2, 'mails', 'sender', '2026-12-01 13:26:21.655283+00', '\x010000000000', 0, 0, NULL);


--
-- Data for Name: cursor; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (1, 1, 'a');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (2, 1, 'b');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (3, 1, 'c');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (4, 1, 'e');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (5, 1, 'd');


--
-- Data for Name: dead_letter; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.dead_letter OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 'billing', 'c', 84, 'msg-84', '21', NULL, 'hopeless', 0, 1, '2026-12-01 13:26:21.66068+00', '2026-12-01 13:26:21.661237+00');


--
-- Data for Name: discovery; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.discovery VALUES (1, 1, '\x01000000000000000000000000');
INSERT INTO queen_mq.discovery VALUES (2, 2, '\x01000000000000000000000000');


--
-- Data for Name: identity; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.identity VALUES (9046550650257366410, 0, NULL);


--
-- Data for Name: lease_set; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.lease_set OVERRIDING SYSTEM VALUE VALUES (1, 'be581c58-383f-8629-a000-000000001f19', '{4,5}', NULL, '2026-12-01 13:26:21.662794+00');


--
-- Data for Name: marker; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.marker VALUES (1, NULL, '2026-12-01 13:26:21.667216+00', '2026-12-01 13:26:21.667216+00', 'orders', 'charge:1', '{"id": "ch_1"}');
INSERT INTO queen_mq.marker VALUES (2, NULL, '2026-12-01 13:26:21.66753+00', '2026-12-01 13:26:21.66753+00', 'orders', 'count', '7');


--
-- Data for Name: owner; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.owner VALUES ('postgres');


--
-- Data for Name: progress; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.progress VALUES (1, 1, 1, '2026-12-01 13:27:21.657378+00', NULL, '\x010100000404020400000001be5ca646c4c580d58000000000001635c484e9daa7a48203c4a08594a8a48203809c9c39040400020100000000c484e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (1, 2, 1, NULL, 729, '\x0101000004040204000000000004c484e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (1, 3, 1, '2026-12-02 01:26:21.659273+00', NULL, '\x010100000404030300000001be515cca36588a6c800000000000151d92a2e9daa7a4820392e2c6c9e9a6820380c0ddeec10204040201010000000492a2e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (2, 1, 1, '2026-12-01 13:27:21.660085+00', NULL, '\x010200000408010100000001be54e3196941802980000000000021a3eaaee9daa7a48203eaca8594a8a48203809c9c39010900000000eaaee9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (2, 2, 1, '2026-12-01 13:26:22.660268+00', 732, '\x0102000005090001010001d8bae3dba7a48203013801000000eaaee9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (3, 1, 1, '2026-12-01 13:27:21.661059+00', NULL, '\x0103000000000001be539023b02286c9800000000000312b86bee9daa7a4820386da8594a8a48203809c9c39010d0000000086bee9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (3, 2, 1, NULL, 734, '\x0103000000000000000286bee9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (4, 1, 1, '2026-12-02 01:26:21.662794+00', NULL, '\x0105000000000001be581c58383f8629a000000000001f1994d9e9daa7a482039499c7c9e9a6820380c0ddeec10201150000000094d9e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (5, 1, 1, '2026-12-02 01:26:21.662794+00', NULL, '\x0104000000000001be581c58383f8629a000000000001f1994d9e9daa7a482039499c7c9e9a6820380c0ddeec10201110000000094d9e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (6, 1, 2, NULL, NULL, '\x01000000000000000002aaf1e9daa7a4820300');
INSERT INTO queen_mq.progress VALUES (7, 1, 2, '2026-12-01 13:26:22.665235+00', 738, '\x01000000041801010101a688e4dba7a4820301a90101000000b0fbe9daa7a4820300');


--
-- Data for Name: queue; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.queue OVERRIDING SYSTEM VALUE VALUES (1, 'orders', '2026-12-01 13:26:21.651143+00', 9046550650257366410, 0, NULL, NULL, 5, '00:00:01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queen_mq.queue OVERRIDING SYSTEM VALUE VALUES (2, 'mails', '2026-12-01 13:26:21.654553+00', 9046550650257366410, 0, NULL, NULL, NULL, '00:00:01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'none');


--
-- Data for Name: receipt; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.receipt VALUES (1, 'be5ca646-c4c5-80d5-8000-000000001635', '2026-12-01 13:26:21.658021+00', '\x0100c4a08594a8a4820304040002010000', NULL, NULL);
INSERT INTO queen_mq.receipt VALUES (2, 'be54e319-6941-8029-8000-0000000021a3', '2026-12-01 13:26:21.660268+00', '\x0101eaca8594a8a4820300000109', NULL, NULL);
INSERT INTO queen_mq.receipt VALUES (3, 'be539023-b022-86c9-8000-00000000312b', '2026-12-01 13:26:21.661237+00', '\x010086da8594a8a4820300010d00', NULL, NULL);
INSERT INTO queen_mq.receipt VALUES (6, 'be5525d8-35b1-8d97-8000-00000000660a', '2026-12-01 13:26:21.664818+00', '\x0100aa8d8694a8a4820301190000', 2, 'Default');
INSERT INTO queen_mq.receipt VALUES (7, 'be59e55e-01d3-8cb8-8000-000000007cb7', '2026-12-01 13:26:21.665235+00', '\x0101b0978694a8a4820300000418010101', 2, 'Default');


--
-- Data for Name: replay; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: segment; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.segment VALUES (1, 1, 728, '2026-12-01 13:26:21.655888+00', 6, 'a', '{1,2,3,4,5,6}', '{once,NULL,NULL,NULL,NULL,NULL}', NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 2, 731, '2026-12-01 13:26:21.659709+00', 2, 'b', '{11,12}', NULL, '{"{\"h\": 1}",NULL}', NULL);
INSERT INTO queen_mq.segment VALUES (1, 3, 733, '2026-12-01 13:26:21.66068+00', 1, 'c', '{21}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 4, 735, '2026-12-01 13:26:21.662192+00', 1, 'd', '{31}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 5, 735, '2026-12-01 13:26:21.662251+00', 1, 'e', '{41}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (2, 6, 737, '2026-12-01 13:26:21.663774+00', 4, 'Default', '{51,52,53,54}', NULL, NULL, NULL);


--
-- Data for Name: tally; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: timer; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.timer OVERRIDING SYSTEM VALUE VALUES (1, 1, 'later', 'f', 'timer-e62bdd49cf6c642458f437df3fe8303a', '2027-12-02 13:26:21.666298+00', '61', NULL);
INSERT INTO queen_mq.timer OVERRIDING SYSTEM VALUE VALUES (2, 1, 'gdelayed', 'g', 'delayed', '2026-12-01 13:26:21.667619+00', '62', NULL);


--
-- Name: consumer_group_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.consumer_group_id_seq', 2, true);


--
-- Name: cursor_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.cursor_id_seq', 8, true);


--
-- Name: dead_letter_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.dead_letter_id_seq', 1, true);


--
-- Name: discovery_revision; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.discovery_revision', 2, true);


--
-- Name: lease_set_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.lease_set_id_seq', 1, true);


--
-- Name: marker_version; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.marker_version', 32, true);


--
-- Name: queue_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.queue_id_seq', 2, true);


--
-- Name: segment_id; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.segment_id', 6, true);


--
-- Name: timer_id_seq; Type: SEQUENCE SET; Schema: queen_mq; Owner: postgres
--

SELECT pg_catalog.setval('queen_mq.timer_id_seq', 2, true);


--
-- PostgreSQL database dump complete
--


