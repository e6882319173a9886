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

INSERT INTO queen_mq.admission VALUES (1, 'a', 'once', 28, '2026-12-01 14:18:02.229308+00');


--
-- Data for Name: binding; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: claim; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.claim VALUES (6, 2, 'Default', 168, '2026-12-01 14:18:02.235151+00', '00000cae-e6bd-861a-8000-000000006b0a', '2026-12-01 14:19:02.235151+00');
INSERT INTO queen_mq.claim VALUES (7, 2, 'Default', 169, '2026-12-01 14:18:02.235753+00', '00000c3c-7b8e-89ca-8000-000000007b66', '2026-12-01 14:19:02.235753+00');
INSERT INTO queen_mq.claim VALUES (8, 2, 'Default', 170, '2026-12-01 14:18:02.236314+00', '00000259-1d5f-8b05-8000-000000008d4c', '2026-12-02 02:18:02.236314+00');


--
-- Data for Name: consumer_group; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.consumer_group OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 'billing', '2026-12-01 14:18:02.227291+00', '\x010000000000', 0, 0, NULL);
INSERT INTO queen_mq.consumer_group OVERRIDING SYSTEM VALUE VALUES (2, 'mails', 'sender', '2026-12-01 14:18:02.228827+00', '\x010000000000', 0, 0, NULL);


--
-- Data for Name: cursor; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (1, 1, 'a');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (2, 1, 'b');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (3, 1, 'c');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (4, 1, 'd');
INSERT INTO queen_mq.cursor OVERRIDING SYSTEM VALUE VALUES (5, 1, 'e');


--
-- Data for Name: dead_letter; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.dead_letter OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 'billing', 'c', 84, 'msg-84', '21', NULL, 'hopeless', 0, 1, '2026-12-01 14:18:02.232448+00', '2026-12-01 14:18:02.232858+00');


--
-- Data for Name: discovery; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.discovery VALUES (1, 1, '\x01000000000000000000000000');
INSERT INTO queen_mq.discovery VALUES (2, 2, '\x01000000000000000000000000');


--
-- Data for Name: identity; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.identity VALUES (2451462298280676778, 0, NULL);


--
-- Data for Name: lease_set; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.lease_set OVERRIDING SYSTEM VALUE VALUES (1, '00000416-07e1-80e1-a000-000000001a15', '{4,5}', NULL, '2026-12-01 14:18:02.233933+00', '{1,1}');


--
-- Data for Name: marker; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.marker VALUES (1, NULL, '2026-12-01 14:18:02.237392+00', '2026-12-01 14:18:02.237392+00', 'orders', 'charge:1', '{"id": "ch_1"}');
INSERT INTO queen_mq.marker VALUES (2, NULL, '2026-12-01 14:18:02.237694+00', '2026-12-01 14:18:02.237694+00', 'orders', 'count', '7');


--
-- Data for Name: owner; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.owner VALUES ('postgres');


--
-- Data for Name: progress; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.progress VALUES (1, 1, 1, '2026-12-01 14:19:02.230416+00', NULL, '\x01010000040402040000000100001a14608c8f5e8000000000001834a0fae0e7bea48203a096fda0bfa48203809c9c39040400020100000000a0fae0e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (1, 2, 1, NULL, 730, '\x0101000004040204000000000004a0fae0e7bea4820300', '2026-12-01 14:18:02.231149+00', '\x0100001a14608c8f5e800000000000183400a096fda0bfa4820304040002010000');
INSERT INTO queen_mq.progress VALUES (1, 3, 1, '2026-12-02 02:18:02.231478+00', NULL, '\x010100000404030300000001000033ccac1084cb8000000000001132ec8ae1e7bea48203eccabed680a7820380c0ddeec102040402010100000004ec8ae1e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (2, 1, 1, '2026-12-01 14:19:02.232017+00', NULL, '\x01020000040801010000000100001237f0a08a51800000000000202ea293e1e7bea48203a2affda0bfa48203809c9c39010900000000a293e1e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (2, 2, 1, '2026-12-01 14:18:03.232196+00', 733, '\x0102000005090001010001889fdbe8bea48203013801000000a293e1e7bea4820300', '2026-12-01 14:18:02.232236+00', '\x0100001237f0a08a51800000000000202e01a2affda0bfa4820300000109');
INSERT INTO queen_mq.progress VALUES (3, 1, 1, '2026-12-01 14:19:02.232682+00', NULL, '\x010300000000000100001f2ea4b98c3e80000000000030c5d49de1e7bea48203d4b9fda0bfa48203809c9c39010d00000000d49de1e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (3, 2, 1, NULL, 735, '\x01030000000000000002d49de1e7bea4820300', '2026-12-01 14:18:02.233476+00', '\x0100001f2ea4b98c3e80000000000030c500d4b9fda0bfa4820300010d00');
INSERT INTO queen_mq.progress VALUES (4, 1, 1, '2026-12-02 02:18:02.233933+00', NULL, '\x01040000000000010000041607e180e1a000000000001a159ab1e1e7bea482039af1bed680a7820380c0ddeec1020111000000009ab1e1e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (5, 1, 1, '2026-12-02 02:18:02.233933+00', NULL, '\x01050000000000010000041607e180e1a000000000001a159ab1e1e7bea482039af1bed680a7820380c0ddeec1020115000000009ab1e1e7bea4820300', NULL, NULL);
INSERT INTO queen_mq.progress VALUES (6, 1, 2, NULL, NULL, '\x010000000000000000029ec4e1e7bea4820300', '2026-12-01 14:18:02.235678+00', '\x0100000caee6bd861a8000000000006b0a009ee0fda0bfa4820301190000');
INSERT INTO queen_mq.progress VALUES (7, 1, 2, '2026-12-01 14:18:03.236002+00', 739, '\x01000000041801010101c4dadbe8bea4820301a90101000000d2cde1e7bea4820300', '2026-12-01 14:18:02.236036+00', '\x0100000c3c7b8e89ca8000000000007b6601d2e9fda0bfa4820300000418010101');


--
-- Data for Name: queue; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.queue OVERRIDING SYSTEM VALUE VALUES (1, 'orders', '2026-12-01 14:18:02.225248+00', 2451462298280676778, 0, NULL, NULL, 5, '00:00:01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queen_mq.queue OVERRIDING SYSTEM VALUE VALUES (2, 'mails', '2026-12-01 14:18:02.228108+00', 2451462298280676778, 0, NULL, NULL, NULL, '00:00:01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'none');


--
-- Data for Name: receipt; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: replay; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: segment; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.segment VALUES (1, 1, 729, '2026-12-01 14:18:02.229308+00', 6, 'a', '{1,2,3,4,5,6}', '{once,NULL,NULL,NULL,NULL,NULL}', NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 2, 732, '2026-12-01 14:18:02.23177+00', 2, 'b', '{11,12}', NULL, '{"{\"h\": 1}",NULL}', NULL);
INSERT INTO queen_mq.segment VALUES (1, 3, 734, '2026-12-01 14:18:02.232448+00', 1, 'c', '{21}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 4, 736, '2026-12-01 14:18:02.233681+00', 1, 'd', '{31}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (1, 5, 736, '2026-12-01 14:18:02.233735+00', 1, 'e', '{41}', NULL, NULL, NULL);
INSERT INTO queen_mq.segment VALUES (2, 6, 738, '2026-12-01 14:18:02.234791+00', 4, 'Default', '{51,52,53,54}', NULL, NULL, NULL);


--
-- Data for Name: tally; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



--
-- Data for Name: timer; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--

INSERT INTO queen_mq.timer OVERRIDING SYSTEM VALUE VALUES (1, 1, 'later', 'f', 'timer-782785ba1dba8aba8d1b270fdce877f8', '2027-12-02 14:18:02.236765+00', '61', NULL);
INSERT INTO queen_mq.timer OVERRIDING SYSTEM VALUE VALUES (2, 1, E'\x01g\x1fdelayed', 'g', 'delayed', '2026-12-01 14:18:02.238111+00', '62', NULL);


--
-- Data for Name: waterline; Type: TABLE DATA; Schema: queen_mq; Owner: postgres
--



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


