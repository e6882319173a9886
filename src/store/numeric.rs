//! Numbers of markers: PostgreSQL's numeric, for the rules of the engine.

use queen_engine::kv::Number;

use crate::pg::datum::Numeric;

thread_local! {
    /// numeric holds 131,072 digits before the point: two numbers of fewer digits have a sum.
    static BOUNDS: (Option<Numeric>, Option<Numeric>) =
        (Numeric::from_text("-1e131071"), Numeric::from_text("1e131071"));
}

impl Number for Numeric {
    /// NaN is greater than all others.
    fn is_usable(&self) -> bool {
        BOUNDS.with(|bounds| matches!(bounds, (Some(low), Some(high)) if low < self && self < high))
    }

    fn plus(&self, other: &Self) -> Self {
        Self(self.0.clone() + other.0.clone())
    }
}
