//! Conditions on the columns of an index.

use pgrx::{IntoDatum, pg_sys};

use super::clock::Moment;

/// A value of an indexed column.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Int(i64),
    Time(Moment),
    /// Of a column with COLLATE "C".
    Text(&'a str),
    /// No table of ours is scanned by one; the layer's tests do it.
    #[allow(dead_code)]
    Uuid(&'a [u8; 16]),
}

/// A condition on the next column of an index.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Is(Value<'a>),
    Above(Value<'a>),
    UpTo(Value<'a>),
    Below(Value<'a>),
}

impl Value<'_> {
    fn datum(self) -> pg_sys::Datum {
        match self {
            Value::Int(number) => number.into(),
            Value::Time(moment) => moment.into(),
            Value::Text(text) => text.into_datum().unwrap_or(pg_sys::Datum::null()),
            Value::Uuid(bytes) => pg_sys::Datum::from(bytes.as_ptr()),
        }
    }

    fn collation(self) -> pg_sys::Oid {
        match self {
            Value::Text(_) => pg_sys::C_COLLATION_OID,
            _ => pg_sys::InvalidOid,
        }
    }
}

impl Key<'_> {
    /// The operator's place in the b-tree's strategies, and its function.
    fn operator(&self) -> (u32, u32) {
        match self {
            Key::Is(Value::Int(_)) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ),
            Key::Is(Value::Time(_)) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_EQ),
            Key::Is(Value::Text(_)) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ),
            Key::Is(Value::Uuid(_)) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_UUID_EQ),
            Key::Above(Value::Int(_)) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_INT8GT),
            Key::Above(Value::Time(_)) => {
                (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TIMESTAMPTZ_GT)
            }
            Key::Above(Value::Text(_)) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT),
            Key::Above(Value::Uuid(_)) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_UUID_GT),
            Key::UpTo(Value::Int(_)) => (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_INT8LE),
            Key::UpTo(Value::Time(_)) => {
                (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_LE)
            }
            Key::UpTo(Value::Text(_)) => (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_TEXT_LE),
            Key::UpTo(Value::Uuid(_)) => (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_UUID_LE),
            Key::Below(Value::Int(_)) => (pg_sys::BTLessStrategyNumber, pg_sys::F_INT8LT),
            Key::Below(Value::Time(_)) => (pg_sys::BTLessStrategyNumber, pg_sys::F_TIMESTAMPTZ_LT),
            Key::Below(Value::Text(_)) => (pg_sys::BTLessStrategyNumber, pg_sys::F_TEXT_LT),
            Key::Below(Value::Uuid(_)) => (pg_sys::BTLessStrategyNumber, pg_sys::F_UUID_LT),
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Key::Is(value) | Key::Above(value) | Key::UpTo(value) | Key::Below(value) => *value,
        }
    }

    /// As a scan takes it, on a column of the index.
    pub fn on(&self, column: i16) -> pg_sys::ScanKeyData {
        let (strategy, function) = self.operator();
        let mut entry = pg_sys::ScanKeyData::default();
        // SAFETY: fills in `entry`; the function is a built-in of the operator class, which every
        // index of ours has by default, and takes values of this type.
        unsafe {
            pg_sys::ScanKeyEntryInitialize(
                &mut entry,
                0,
                column,
                strategy as pg_sys::StrategyNumber,
                pg_sys::InvalidOid,
                self.value().collation(),
                pg_sys::Oid::from(function),
                self.value().datum(),
            );
        }
        entry
    }
}
