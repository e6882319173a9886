//! Values as PostgreSQL holds them, and what Rust makes of them: compared with PostgreSQL's own
//! functions.

use std::collections::HashSet;

use pgrx::pg_sys;

use crate::pg::arrays::{Array, BigintArray, JsonbArray, TextArray};
use crate::pg::datum::{Jsonb, Numeric, parse_uuid};
use crate::pg::random::random;
use crate::pg::result_context::ResultContext;
use crate::pg::scratch::Scratch;

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::{Spi, pg_test};
    use queen_engine::kv::Number;

    use super::super::backend::refused;
    use super::super::lab::{run, value};
    use super::*;

    /// Uses what SQL makes: one row of one column. Its memory is there while the statement's is.
    fn made<T: pgrx::FromDatum + pgrx::IntoDatum, R>(sql: &str, using: impl FnOnce(T) -> R) -> R {
        Spi::connect(|client| {
            let rows = client.select(&format!("SELECT {sql}"), Some(1), &[]).expect("a row");
            using(rows.first().get_one().expect("a value").expect("no NULL"))
        })
    }

    #[pg_test]
    fn jsonb_goes_from_text_to_text_as_in_sql() {
        for text in
            ["null", "[]", "{}", "[1, 2.50, 1e400]", "\"\\u00e4\"", "{\"b\":1, \"a\":[true]}"]
        {
            let jsonb = Jsonb::from_text(text).expect("jsonb");
            assert_eq!(&*jsonb.to_text(), value(&format!("SELECT '{text}'::jsonb")));
        }
        assert!(Jsonb::from_text("1\0").is_none());
        for text in ["", "{", "\"\\u0000\"", "nan"] {
            let refusal = refused(|| assert!(Jsonb::from_text(text).is_none())).expect("an error");
            let as_cast = refused(|| run(&format!("SELECT '{text}'::jsonb"))).expect("an error");
            assert_eq!(refusal.code, as_cast.code, "{text}");
        }
    }

    #[pg_test]
    fn elements_of_text_are_read_where_they_lie() {
        made("ARRAY['one', NULL, 'zwölf', '']", |array: TextArray| {
            let elements = array.elements();
            let texts = (0..5).map(|at| elements.text(at)).collect::<Vec<_>>();
            assert_eq!(texts, [Some("one"), None, Some("zwölf"), Some(""), None]);
        });
        made("ARRAY[7::bigint]", |array: BigintArray| {
            let refusal = refused(|| assert!(array.elements().text(0).is_none()));
            assert_eq!(
                refusal.expect("an error").message,
                "an array that is not of text was read as one"
            );
        });
    }

    #[pg_test]
    fn the_length_of_a_json_array_is_read_from_its_header() {
        for (text, length) in [
            ("[]", Some(0)),
            ("[1, [2, 3], null]", Some(3)),
            ("{}", None),
            ("7", None),
            ("null", None),
        ] {
            assert_eq!(Jsonb::from_text(text).expect("jsonb").array_length(), length, "{text}");
        }
        run("CREATE TEMPORARY TABLE stored (j jsonb);
             INSERT INTO stored SELECT jsonb_agg(0) FROM generate_series(1, 100000)");
        // Compressed and out of line.
        assert_eq!(made("j FROM stored", Jsonb::array_length), Some(100_000));
    }

    #[pg_test]
    fn the_size_of_a_value_is_that_without_compression() {
        run("CREATE TEMPORARY TABLE stored (j jsonb, t text[]);
             INSERT INTO stored SELECT to_jsonb(repeat('x', 100000)), ARRAY[repeat('x', 100000)]");
        let uncompressed = value("SELECT octet_length(jsonb_send(j)) FROM stored");
        assert_eq!(uncompressed, "100003");
        made("j FROM stored", |stored: Jsonb| {
            // Headers of the value, of the container and of its only entry.
            assert_eq!(stored.size(), 100_000 + 4 + 4 + 4);
            let again = Jsonb::from_text(&stored.to_text()).expect("jsonb");
            assert_eq!(stored.size(), again.size());
        });
        let size = made("t FROM stored", TextArray::size);
        assert!((100_000..100_100).contains(&size), "{size}");
        let column = value("SELECT pg_column_size(j) < 10000 FROM stored");
        assert_eq!(column, "true");
    }

    #[pg_test]
    fn a_copy_outlives_the_memory_and_the_table_it_came_from() {
        run("CREATE TEMPORARY TABLE stored (j jsonb);
             INSERT INTO stored SELECT jsonb_agg(n) FROM generate_series(1, 10000) AS n");
        let here = ResultContext::here();
        let scratch = Scratch::new();
        let copy = scratch.run(|| made("j FROM stored", |j: Jsonb| j.copied_to(here)));
        run("DROP TABLE stored");
        let text = copy.to_text();
        assert_eq!(copy.array_length(), Some(10_000));
        assert!(text.starts_with("[1, 2, 3,") && text.ends_with("9999, 10000]"));
    }

    #[pg_test]
    fn the_elements_of_an_array_come_in_order_with_their_nulls() {
        let read = |texts: TextArray| {
            let open = texts.open();
            let elements: Vec<Option<String>> = open.elements().iter().collect();
            (open.dimensions, open.count, elements)
        };
        let (dimensions, count, elements) = made("ARRAY['a', NULL, 'ä', '']", read);
        assert_eq!((dimensions, count), (1, 4));
        assert_eq!(elements, [Some("a"), None, Some("ä"), Some("")].map(|e| e.map(str::to_owned)));
        made("'[5:6]={-1,9223372036854775807}'::bigint[]", |numbers: BigintArray| {
            let numbers = numbers.elements();
            assert_eq!(numbers.iter().collect::<Vec<_>>(), [Some(-1), Some(i64::MAX)]);
            assert_eq!((numbers.len(), numbers.get(2).is_none()), (2, true));
        });
        let square = made("'{{1,2},{3,4}}'::jsonb[]", |square: JsonbArray| {
            let square = square.open();
            (square.dimensions, square.count)
        });
        assert_eq!(square, (2, 4));
        assert_eq!(made("'{}'::text[]", read), (0, 0, Vec::new()));
        let sum = |numbers: BigintArray| {
            let numbers = numbers.elements().iter();
            numbers.map(|number: Option<i64>| number.expect("a number")).sum::<i64>()
        };
        let sum = made("array_agg(n::bigint) FROM generate_series(1, 100000) AS n", sum);
        assert_eq!(sum, 5_000_050_000);
    }

    #[pg_test]
    fn a_uuid_reads_as_in_sql() {
        for text in ["00112233-4455-6677-8899-aabbccddeeff", "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"] {
            let bytes = made(&format!("'{text}'::uuid"), |uuid: pgrx::Uuid| *uuid.as_bytes());
            assert_eq!(parse_uuid(text), Some(bytes));
        }
        let long = "0".repeat(33);
        for text in ["", "0", &long[..31], &long, "g0112233445566778899aabbccddeeff", "+0+1+2"] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
        // Two characters, three bytes: no digits.
        assert_eq!(parse_uuid(&"ää".repeat(8)), None);
    }

    #[pg_test]
    fn random_numbers_do_not_repeat() {
        let drawn: HashSet<u64> = (0..1000).map(|_| random()).collect();
        assert_eq!(drawn.len(), 1000);
        // Each bit is one in about half of them.
        for bit in 0..64 {
            let ones = drawn.iter().filter(|number| **number >> bit & 1 == 1).count();
            assert!((300..700).contains(&ones), "bit {bit}: {ones}");
        }
    }

    #[pg_test]
    fn a_numeric_is_exact_and_knows_which_sums_it_can_hold() {
        let number = |text: &str| Numeric::from_text(text).expect("a number");
        let sum = number("0.1").plus(&number("99999999999999999999.90"));
        let text = sum.to_jsonb().expect("jsonb").to_text();
        assert_eq!(&*text, "100000000000000000000.00");
        assert!(number("-1e131070").is_usable() && number("9e131070").is_usable());
        assert!(!number("1e131071").is_usable() && !number("-1e131071").is_usable());
        assert!(!number("NaN").is_usable() && !number("Infinity").is_usable());
        assert!(refused(|| assert!(Numeric::from_text("1e131072").is_none())).is_none());
        assert!(refused(|| assert!(Numeric::from_text("one").is_none())).is_none());
    }

    #[pg_test]
    fn scratch_memory_is_freed_after_each_step() {
        let scratch = Scratch::new();
        // SAFETY: reads and allocates in the context that is current.
        unsafe {
            let outside = pg_sys::CurrentMemoryContext;
            let used = |context| pg_sys::MemoryContextMemAllocated(context, false);
            let context = scratch.run(|| pg_sys::CurrentMemoryContext);
            let before = used(context);
            scratch.keep(|| assert!(!pg_sys::palloc(1 << 20).is_null()));
            assert!(used(context) >= before + (1 << 20));
            scratch.clear();
            assert_eq!(used(context), before);
            scratch.run(|| assert!(!pg_sys::palloc(1 << 20).is_null()));
            assert_eq!(used(context), before);
            assert!(pg_sys::CurrentMemoryContext == outside);
        }
    }
}
