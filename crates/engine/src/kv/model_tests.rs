//! `decide` against a model: a plain map in which an entry vanishes at its expiry.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// 2026 or so.
const NOW: Micros = 830_000_000_000_000;

proptest! {
    /// Rows that stay after their expiry until a sweep, changed as `decide` says, answer like a
    /// plain map in which an entry vanishes at its expiry.
    #[test]
    fn expired_rows_are_as_good_as_none(actions in proptest::collection::vec(action(), 1..60)) {
        let mut stored = StoredRows::default();
        let mut model = Model::default();
        let mut now = NOW;
        for Action { pass, sweep, key, op, ttl } in actions {
            now += pass;
            if sweep {
                stored.rows.retain(|_, row| row.expires_at.is_none_or(|end| end > now));
            }
            model.entries.retain(|_, entry| entry.expires_at.is_none_or(|end| end > now));
            let expires_at = ttl.map(|ttl| now + ttl);
            let op = op.aimed_at(model.entries.get(&key).map(|entry| entry.version));
            prop_assert_eq!(
                stored.apply(key, &op, expires_at, now),
                model.apply(key, &op, expires_at),
            );
            let live: BTreeMap<_, _> = stored.rows.clone().into_iter()
                .filter(|(_, row)| row.expires_at.is_none_or(|end| end > now)).collect();
            prop_assert_eq!(&live, &model.entries);
        }
    }
}

/// A value is a number, or (None) something else.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    version: i64,
    value: Option<i64>,
    expires_at: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
enum Aim {
    Anything,
    Absent,
    Current,
    Stale,
}

#[derive(Clone, Debug)]
enum Op {
    Put(Aim, Option<i64>),
    Delete(Aim),
    Check(Aim),
    Incr(i64, Option<i64>, Option<i64>),
}

/// An operation with its aim resolved to an expectation.
struct Aimed(Op, Expect);

impl Op {
    fn aimed_at(self, current: Option<i64>) -> Aimed {
        let (Op::Put(aim, _) | Op::Delete(aim) | Op::Check(aim)) = self else {
            return Aimed(self, Expect::Anything);
        };
        let expect = match aim {
            Aim::Anything => Expect::Anything,
            Aim::Absent => Expect::Absent,
            Aim::Current => Expect::Version(current.unwrap_or(1)),
            Aim::Stale => Expect::Version(1),
        };
        Aimed(self, expect)
    }
}

#[derive(Clone, Debug)]
struct Action {
    pass: i64,
    sweep: bool,
    key: u8,
    op: Op,
    ttl: Option<i64>,
}

fn action() -> impl Strategy<Value = Action> {
    let aim = || {
        prop_oneof![Just(Aim::Anything), Just(Aim::Absent), Just(Aim::Current), Just(Aim::Stale)]
    };
    let bound = || proptest::option::of(-4..4i64);
    let op = prop_oneof![
        (aim(), proptest::option::weighted(0.7, -9..9i64)).prop_map(|(aim, v)| Op::Put(aim, v)),
        aim().prop_map(Op::Delete),
        aim().prop_map(Op::Check),
        (-3..4i64, bound(), bound()).prop_map(|(delta, min, max)| Op::Incr(delta, min, max)),
    ];
    let ttl = proptest::option::weighted(0.8, 1..5i64);
    (0..3i64, any::<bool>(), 0..3u8, op, ttl).prop_map(|(pass, sweep, key, op, ttl)| Action {
        pass,
        sweep,
        key,
        op,
        ttl,
    })
}

type Answer = (bool, Option<Option<i64>>, Option<i64>, Option<NotApplied>);

fn answer(applied: bool, entry: Option<&Entry>, reason: Option<NotApplied>) -> Answer {
    (applied, entry.map(|entry| entry.value), entry.map(|entry| entry.version), reason)
}

/// Rows as the store keeps them. Carries decisions out as the store does.
#[derive(Default)]
struct StoredRows {
    rows: BTreeMap<u8, Entry>,
    versions: i64,
}

impl StoredRows {
    fn apply(
        &mut self,
        key: u8,
        Aimed(op, expect): &Aimed,
        expires_at: Option<Micros>,
        now: Micros,
    ) -> Answer {
        let expect = *expect;
        let (write, value) = match *op {
            Op::Put(_, value) => (Write::Put { expect }, value),
            Op::Delete(_) => (Write::Delete { expect }, None),
            Op::Check(_) => (Write::Check { expect }, None),
            Op::Incr(delta, min, max) => (Write::Incr { delta, min, max }, None),
        };
        let row = self.rows.get(&key).copied();
        let found = row.map(|row| Found {
            version: row.version,
            expires_at: row.expires_at,
            number: row.value,
        });
        let live = row.filter(|row| row.expires_at.is_none_or(|end| end > now));
        let (value, expires_at) = match decide(&write, found.as_ref(), now).unwrap() {
            Decision::Refuse(reason) => return answer(false, live.as_ref(), Some(reason)),
            Decision::Agree => return answer(true, None, None),
            Decision::Hold => return answer(true, live.as_ref(), None),
            Decision::Remove => {
                self.rows.remove(&key);
                return answer(true, live.as_ref(), None);
            }
            Decision::Store(slot) => {
                assert_eq!(slot == Slot::Empty, row.is_none());
                (value, expires_at)
            }
            Decision::Count(Slot::Live, sum) => (Some(sum), live.unwrap().expires_at),
            Decision::Count(_, sum) => (Some(sum), expires_at),
        };
        self.versions += 1;
        let entry = Entry { version: self.versions, value, expires_at };
        self.rows.insert(key, entry);
        answer(true, Some(&entry), None)
    }
}

/// What the reference page of markers says, in its order.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u8, Entry>,
    versions: i64,
}

impl Model {
    fn apply(&mut self, key: u8, Aimed(op, expect): &Aimed, expires_at: Option<Micros>) -> Answer {
        let entry = self.entries.get(&key).copied();
        let refused = |reason| answer(false, entry.as_ref(), Some(reason));
        match (*expect, entry) {
            (Expect::Absent, Some(_)) => return refused(NotApplied::Exists),
            (Expect::Version(_), None) => return refused(NotApplied::Absent),
            (Expect::Version(n), Some(e)) if e.version != n => return refused(NotApplied::Version),
            _ => {}
        }
        let (value, expires_at) = match *op {
            Op::Check(_) => return answer(true, entry.as_ref(), None),
            Op::Delete(_) => {
                self.entries.remove(&key);
                let applied = entry.is_some() || *expect == Expect::Absent;
                return answer(applied, entry.as_ref(), (!applied).then_some(NotApplied::Absent));
            }
            Op::Put(_, value) => (value, expires_at),
            Op::Incr(delta, min, max) => {
                let Some(start) = entry.map_or(Some(0), |entry| entry.value) else {
                    return refused(NotApplied::Type);
                };
                let sum = start + delta;
                if sum < min.unwrap_or(sum) || sum > max.unwrap_or(sum) {
                    return refused(NotApplied::Limit);
                }
                (Some(sum), entry.map_or(expires_at, |entry| entry.expires_at))
            }
        };
        self.versions += 1;
        let entry = Entry { version: self.versions, value, expires_at };
        self.entries.insert(key, entry);
        answer(true, Some(&entry), None)
    }
}
