//! The result of a run: the history to check, the numbers to show, and what the database says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;

use anyhow::Result;
use tokio_postgres::config::Config as Target;

use super::Report;
use super::checker::{Violation, check};
use super::conduct::{EAGER, LATE, Played};
use super::history::{GroupId, History};
use super::worker::Shared;
use crate::Session;

/// Join the logs of all workers and check them.
pub fn judge(shared: &Shared, played: Played) -> (Report, History) {
    let mut history = History {
        groups: played.groups,
        unordered: shared.config.unordered,
        gaps: shared.config.survives(),
        ..History::default()
    };
    let mut stats = BTreeMap::new();
    let mut violations = Vec::new();
    for left in played.lefts {
        history.append(left.log);
        for (name, n) in left.stats {
            *stats.entry(name).or_default() += n;
        }
        violations.extend(left.anomalies.into_iter().map(|text| format!("Anomaly: {text}")));
    }
    violations.extend(check(&history).iter().map(Violation::to_string));
    stats.insert("messages pushed", shared.pushed.load(Ordering::Relaxed));
    for (name, group) in [
        ("completed by alpha", 0),
        ("completed by beta", 1),
        ("completed by eager", EAGER),
        ("completed by late", LATE),
    ] {
        stats.insert(name, shared.completed[group as usize].load(Ordering::Relaxed));
    }
    let under_leases = shared.completed.iter().zip(0..).filter(|(_, group)| *group != EAGER);
    let under_leases = under_leases.map(|(n, _)| n.load(Ordering::Relaxed)).sum();
    stats.insert("completed under leases", under_leases);
    stats.insert("milliseconds to drain", played.drained.as_millis() as u64);
    stats.insert("backends ended", played.kills);
    stats.insert("messages overtaken by later ones", overtaken(&history));
    (Report { seed: shared.config.seed, stats, violations }, history)
}

/// How many messages came to a group after ones with larger ids in their stream: their transactions
/// committed late.
fn overtaken(history: &History) -> u64 {
    let mut deliveries: Vec<_> = history.deliveries.iter().collect();
    deliveries.sort_unstable_by_key(|one| (one.returned, one.at));
    let mut largest: HashMap<(GroupId, u32), i64> = HashMap::new();
    let mut seen = HashSet::new();
    let mut count = 0;
    for one in deliveries {
        if !seen.insert((one.group, one.uid)) {
            continue;
        }
        let largest = largest.entry((one.group, one.stream)).or_insert(i64::MIN);
        count += u64::from(one.message_id < *largest);
        *largest = one.message_id.max(*largest);
    }
    count
}

/// Compare with what the database stores at the end.
pub async fn look_inside(target: &Target, report: &mut Report) -> Result<()> {
    let admin = Session::open(target).await?;
    let sql =
        "SELECT grp, uid, count(*) FROM torture_effects GROUP BY grp, uid HAVING count(*) > 1";
    for row in admin.query(sql, &[]).await? {
        let (group, uid, n): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
        report.violations.push(format!("Effect: message {uid} took effect {n} times in {group}"));
    }
    let effects = admin.count("SELECT count(*) FROM torture_effects").await? as u64;
    let completed = report.stat("completed under leases");
    if effects + report.stat("effects not recorded") != completed {
        let text = format!("Effect: {effects} effects of {completed} completions");
        report.violations.push(text);
    }
    if admin.count("SELECT count(*) FROM queen_dead_letters").await? != 0 {
        report.violations.push("Dead letters: there are some".into());
    }
    let groups = admin.count("SELECT count(to_regclass('queen_groups'))").await?;
    if groups == 0 {
        return Ok(());
    }
    let sql = "SELECT queue, coalesce(consumer_group, '(queue mode)'), pending::bigint, \
               in_flight::bigint FROM queen_groups WHERE pending <> 0 OR in_flight <> 0";
    for row in admin.query(sql, &[]).await? {
        let (queue, group): (String, String) = (row.get(0), row.get(1));
        let (pending, in_flight): (i64, i64) = (row.get(2), row.get(3));
        let text = format!("queen_groups: {queue}, {group}: {pending} pending, {in_flight} leased");
        report.violations.push(text);
    }
    Ok(())
}
