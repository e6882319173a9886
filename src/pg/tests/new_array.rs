//! Arrays and texts that are made in one piece, beside PostgreSQL's own.

use pgrx::pg_sys;

use crate::pg::columns::{Arg, arg};
use crate::pg::datum::Jsonb;
use crate::pg::new_array::array;
use crate::pg::text::{Text, TextRoom};

#[pgrx::pg_schema]
mod tests {
    use pgrx::FromDatum;
    use pgrx::prelude::{Spi, pg_test};

    use super::super::lab::run;
    use super::*;

    /// The bytes of a varlena.
    fn bytes(datum: Arg) -> Vec<u8> {
        let datum = datum.expect("a value");
        // SAFETY: a varlena is as long as its header says.
        unsafe {
            let size = pgrx::varsize_any(datum.cast_mut_ptr());
            std::slice::from_raw_parts(datum.cast_mut_ptr(), size).to_vec()
        }
    }

    #[pg_test]
    fn an_array_of_texts_has_the_bytes_of_postgresqls_own() {
        let long = "ä".repeat(5000);
        for length in [1, 2, 7, 8, 9, 28] {
            let whole: Vec<Option<&str>> =
                (0..length).map(|at| Some(["", "a", "ab", "abc", "abcd", &long][at % 6])).collect();
            assert_eq!(bytes(array(&whole)), bytes(arg(whole)), "{length}");
            let with_nulls: Vec<Option<&str>> =
                (0..length).map(|at| (at % 3 == 1).then_some("some")).collect();
            assert_eq!(bytes(array(&with_nulls)), bytes(arg(with_nulls)), "{length}");
        }
    }

    /// In line and short, compressed, out of line, and from an array.
    #[pg_test]
    fn an_array_of_jsonb_unpacks_what_is_packed() {
        run("CREATE TEMPORARY TABLE packed (n int, j jsonb);
             INSERT INTO packed VALUES (1, '7'), (2, to_jsonb(repeat('x', 100000)));
             INSERT INTO packed
                 SELECT 3, jsonb_agg(md5(n::text)) FROM generate_series(1, 9000) AS n");
        let columns = "(SELECT j FROM packed WHERE n = 1), (SELECT j FROM packed WHERE n = 2),
            (SELECT j FROM packed WHERE n = 3), (ARRAY['{}', NULL, '[1]']::jsonb[])[3]";
        Spi::connect(|client| {
            let rows = client.select(&format!("SELECT {columns}"), Some(1), &[]).expect("a row");
            let row = rows.first();
            let value = |at| row.get::<Jsonb>(at).expect("a column");
            let values = [value(1), None, value(2), value(3), value(4)];
            assert_eq!(bytes(array(&values)), bytes(arg(values.to_vec())));
        });
    }

    #[pg_test]
    fn room_for_a_text_holds_one_after_the_other() {
        let mut room = TextRoom::default();
        // SAFETY: the texts are texts.
        let read = |text: Text| unsafe { String::from_datum(arg(text).expect("a text"), false) };
        for text in ["msg-1", "", "abcd", &"ä".repeat(1000), "x"] {
            let held = room.hold(text);
            assert_eq!(read(held).as_deref(), Some(text));
            assert_eq!(bytes(arg(held)), bytes(arg(Text::copied(text))));
        }
        assert_eq!(pg_sys::VARHDRSZ, size_of::<u32>());
    }
}
