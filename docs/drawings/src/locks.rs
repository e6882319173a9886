//! The lock order: from the top down, who waits and who only tries.

use crate::canvas::{
    BLUE, BLUISH, BODY, Canvas, FAINT, INK, Look, Picture, QUIET, YELLOWISH, area,
};

/// A lock, what it is, who waits for it, and who only tries.
type Rung = (&'static str, &'static str, &'static str, &'static str);

const ROWS: [Rung; 12] = [
    ("identity", "table lock", "the first call after a restore", "—"),
    ("row of queue", "FOR UPDATE", "configure, delete", "—"),
    ("registration", "of a group's name", "subscribe", "first pop, queen_wait"),
    ("tally", "of a queue", "purge, delete", "counting, retention"),
    ("first_reads", "of a queue", "whole: purge, delete, reorder", "share: pop, fold"),
    ("", "", "share: seek, unsubscribe, replay", ""),
    ("first_reads_of", "a group", "whole: seek of a group", "share: pop, fold"),
    ("", "", "share: seek of a partition, unsubscribe, replay", ""),
    ("discovery", "of a group", "—", "search of a pop"),
    ("claims", "of a partition", "—", "retention; a pop looks"),
    ("rows of consumer_group", "by id", "seek, purge, delete, reorder", "retention"),
    ("rows of cursor, claim", "by id", "settle, seek, purge, delete", "pop, sweep, fold"),
];

const TOP: f64 = 78.0;
const ROW: f64 = 40.0;

pub fn draw() -> Picture {
    let mut canvas = Canvas::new(
        960.0,
        736.0,
        "The lock order",
        "Locks from the first to the last, with the calls that wait for each and those that only \
         try it; below, the order in which a bundle takes its locks.",
    );
    let heads = [(62.0, "lock"), (470.0, "who waits for it"), (744.0, "who only tries")];
    for (x, head) in heads {
        canvas.text(x, 52.0, BODY.large().bold(), head);
    }
    let mut is_object = false;
    for (rung, place) in ROWS.iter().zip(0..) {
        is_object = match rung.0 {
            "registration" => true,
            "rows of consumer_group" => false,
            _ => is_object,
        };
        row(&mut canvas, TOP + f64::from(place) * ROW, *rung, is_object);
    }
    let end = TOP + ROW * ROWS.len() as f64;
    canvas.arrow(&[(40.0, TOP + 6.0), (40.0, end - 8.0)], BLUE);
    let after =
        "Rows of timer and dead_letter are last: schedule, cancel and delete wait for them.";
    canvas.text(62.0, end + 26.0, BODY.in_colour(FAINT), after);
    bundle(&mut canvas, end + 58.0);
    canvas.finish()
}

fn row(canvas: &mut Canvas, y: f64, (lock, what, waits, tries): Rung, is_object: bool) {
    let colour = if is_object { BLUISH } else { YELLOWISH };
    if !lock.is_empty() {
        let rows = if lock.starts_with("first_reads") { 2.0 } else { 1.0 };
        let frame = Look { frame: colour.frame, ..colour };
        canvas.frame(area(56.0, y, 384.0, rows * ROW - 6.0), frame);
        canvas.text(70.0, y + 23.0, BODY.bold().code(), lock);
        canvas.text(426.0, y + 23.0, BODY.ended().in_colour(FAINT), what);
    }
    canvas.text(470.0, y + 23.0, BODY, waits);
    if !tries.is_empty() {
        canvas.text(744.0, y + 23.0, BODY, tries);
    }
}

fn bundle(canvas: &mut Canvas, y: f64) {
    canvas.text(
        62.0,
        y + 6.0,
        BODY.large().bold(),
        "A bundle (queen_tx_commit) takes, in this order",
    );
    let steps = [
        ("markers", "by (ns, key)"),
        ("cursors, claims", "by id"),
        ("transaction_ids", "by (queue, …, id)"),
        ("timers", "by (queue, key)"),
    ];
    for ((what, order), place) in steps.iter().zip(0..) {
        let at = area(56.0 + f64::from(place) * 222.0, y + 28.0, 186.0, 66.0);
        canvas.frame(at, QUIET);
        canvas.text(at.middle(), at.y + 27.0, BODY.bold().centred(), what);
        canvas.text(at.middle(), at.y + 50.0, BODY.centred().in_colour(FAINT), order);
        if place > 0 {
            canvas.arrow(&[(at.x - 34.0, at.y + 33.0), (at.x - 3.0, at.y + 33.0)], INK);
        }
    }
}
