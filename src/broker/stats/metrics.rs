//! The metrics: which figure has which name, and the text in which Prometheus reads them. Called by
//! `queen_metrics` and `queen_prometheus`, with figures that have been read; touches no table.

use crate::broker::stats::figures::{Figures, GroupFigures, QueueFigures};
use crate::broker::stats::outcomes::{GroupCounts, OUTCOMES};
use crate::pg::clock::Moment;

/// One figure of one queue or group, as a row of `queen_metrics`.
pub struct Metric {
    pub name: &'static str,
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
    pub kind: &'static str,
    pub help: &'static str,
}

pub const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// Name, kind, help, and how to read the value; None where there is none.
type Figure<T> = (&'static str, &'static str, &'static str, fn(&T, Moment) -> Option<f64>);

const OF_QUEUES: [Figure<QueueFigures>; 8] = [
    ("queen_queue_depth", GAUGE, "Messages that wait for the slowest group.", |q, _| {
        Some(q.depth as f64)
    }),
    ("queen_queue_messages", GAUGE, "Messages in the log.", |q, _| Some(q.messages as f64)),
    ("queen_queue_bytes", GAUGE, "Bytes of payload in the log, as stored.", |q, _| {
        Some(q.bytes as f64)
    }),
    ("queen_queue_messages_pushed_total", COUNTER, "Messages that have arrived.", |q, _| {
        Some(q.arrived as f64)
    }),
    ("queen_queue_oldest_age_seconds", GAUGE, "Age of the oldest message in the log.", |q, now| {
        seconds(q.oldest, now)
    }),
    ("queen_queue_partitions", GAUGE, "Partitions with messages in the log.", |q, _| {
        Some(q.partitions as f64)
    }),
    ("queen_queue_groups", GAUGE, "Consumer groups.", |q, _| Some(q.groups as f64)),
    ("queen_queue_timers", GAUGE, "Messages that enter the log later.", |q, _| {
        Some(q.timers as f64)
    }),
];

const OF_GROUPS: [Figure<GroupFigures>; 6] = [
    ("queen_group_pending", GAUGE, "Messages that are not settled.", |g, _| Some(g.pending as f64)),
    ("queen_group_in_flight", GAUGE, "Messages in live leases.", |g, _| Some(g.in_flight as f64)),
    ("queen_group_retrying", GAUGE, "Messages that came back and wait.", |g, _| {
        Some(g.retrying as f64)
    }),
    ("queen_group_dead_letters", GAUGE, "Messages the group gave up on.", |g, _| {
        Some(g.dead_letters as f64)
    }),
    (
        "queen_group_oldest_pending_age_seconds",
        GAUGE,
        "Age of the oldest message not settled.",
        |g, now| seconds(g.oldest_pending, now),
    ),
    (
        "queen_group_last_pop_timestamp_seconds",
        GAUGE,
        "When the group last got messages, in seconds since 1970.",
        |g, _| g.last_pop_at.map(since_1970),
    ),
];

const OVERDUE: &str = "Messages whose moment to enter the log has passed.";
const SETTLED: &str = "Messages settled, by outcome, since the server started; only with the \
                       library preloaded.";
const EXPIRED: &str = "Leases that ran out, for each partition, without order for each message, \
                       since the server started; only with the library preloaded.";

fn seconds(since: Option<Moment>, now: Moment) -> Option<f64> {
    since.map(|at| (now - at).max(0) as f64 / 1e6)
}

/// A moment as Prometheus counts: in seconds since 1970.
pub fn since_1970(at: Moment) -> f64 {
    const YEARS_UNTIL_2000: f64 = 946_684_800.0;
    at as f64 / 1e6 + YEARS_UNTIL_2000
}

fn labels_of(group: &GroupFigures) -> Vec<(&'static str, String)> {
    vec![("queue", group.queue.clone()), ("consumer_group", group.group.clone())]
}

/// All metrics of these figures, those of one name next to each other. `now`: ages are measured
/// from it.
pub fn of(figures: &Figures, now: Moment) -> Vec<Metric> {
    let mut all = Vec::new();
    for (name, kind, help, of) in OF_QUEUES {
        all.extend(figures.queues.iter().filter_map(|queue| {
            let labels = vec![("queue", queue.queue.clone())];
            Some(Metric { name, labels, value: of(queue, now)?, kind, help })
        }));
    }
    for (name, kind, help, of) in OF_GROUPS {
        all.extend(figures.groups.iter().filter_map(|group| {
            Some(Metric { name, labels: labels_of(group), value: of(group, now)?, kind, help })
        }));
    }
    all.extend(figures.overdue.iter().map(|overdue| Metric {
        name: "queen_queue_timers_overdue",
        labels: vec![("queue", overdue.queue.clone())],
        value: overdue.count as f64,
        kind: GAUGE,
        help: OVERDUE,
    }));
    all.extend(of_counts(&figures.groups));
    all
}

/// What is counted as it happens, where it is.
fn of_counts(groups: &[GroupFigures]) -> Vec<Metric> {
    let counted = groups.iter().filter_map(|group| Some((group, GroupCounts::of(group.id)?)));
    let (mut settled, mut expired) = (Vec::new(), Vec::new());
    let kind = COUNTER;
    for (group, counts) in counted {
        for (at, (outcome, _)) in OUTCOMES.into_iter().enumerate() {
            let mut labels = labels_of(group);
            labels.push(("outcome", outcome.to_owned()));
            let (name, value) = ("queen_group_settled_total", counts.settled(at));
            settled.push(Metric { name, labels, value, kind, help: SETTLED });
        }
        let (name, value) = ("queen_group_leases_expired_total", counts.expired());
        expired.push(Metric { name, labels: labels_of(group), value, kind, help: EXPIRED });
    }
    settled.extend(expired);
    settled
}

/// The metrics in Prometheus's text exposition format, version 0.0.4. The label consumer_group of
/// queue mode is empty.
pub fn exposition(metrics: &[Metric]) -> String {
    let mut text = String::new();
    let mut last = "";
    for metric in metrics {
        if metric.name != last {
            last = metric.name;
            text += &format!("# HELP {last} {}\n# TYPE {last} {}\n", metric.help, metric.kind);
        }
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = labels.join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        text += &format!("{last}{labels} {}\n", metric.value);
    }
    text
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
