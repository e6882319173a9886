//! The lock order: from the top down, who waits and who only tries.

use crate::canvas::{BLUE, BLUISH, BODY, Canvas, FAINT, INK, Picture, QUIET, YELLOWISH, area};

/// A lock, what it is, and lines that say who waits for it and who only tries.
struct Rung {
    lock: &'static str,
    what: &'static str,
    is_object: bool,
    waits: &'static [&'static str],
    tries: &'static [&'static str],
}

const fn rung(
    lock: &'static str,
    what: &'static str,
    is_object: bool,
    waits: &'static [&'static str],
    tries: &'static [&'static str],
) -> Rung {
    Rung { lock, what, is_object, waits, tries }
}

const RUNGS: [Rung; 11] = [
    rung("identity", "table", false, &["the first call after a restore"], &["—"]),
    rung("row of queue", "FOR UPDATE", false, &["configure, delete"], &["—"]),
    rung("registration", "of a name", true, &["subscribe"], &["first pop, queen_wait"]),
    rung(
        "tally",
        "of a queue",
        true,
        &["purge, delete"],
        &["retention, max_depth,", "registration"],
    ),
    rung(
        "first_reads",
        "of a queue",
        true,
        &["whole: purge, delete, change of ordering", "share: seek, unsubscribe, replay"],
        &["share: pop, fold, where", "they create a row"],
    ),
    rung(
        "first_reads_of",
        "a group",
        true,
        &["whole: seek", "share: seek of a partition (ordered),", "unsubscribe, replay"],
        &["share: pop, fold, where", "they create a row"],
    ),
    rung("discovery", "of a group", true, &["—"], &["a pop that reads on early"]),
    rung("claims", "of a partition", true, &["—"], &["retention; a pop only looks"]),
    rung(
        "rows of consumer_group",
        "by id",
        false,
        &["seek, unsubscribe, purge, delete,", "change of ordering"],
        &["retention"],
    ),
    rung(
        "rows of cursor, claim",
        "by id",
        false,
        &["settle, extend, bundle, seek,", "unsubscribe, purge, delete,", "change of ordering"],
        &["pop, fold, retention, sweep"],
    ),
    rung(
        "timer, dead_letter, binding",
        "rows",
        false,
        &["schedule, cancel, bind, unbind,", "delete; replay and purge of dead letters"],
        &["pop, sweep (timers)"],
    ),
];

const TOP: f64 = 78.0;
const LINE: f64 = 21.0;
const WAITS: f64 = 400.0;
const TRIES: f64 = 724.0;

impl Rung {
    fn height(&self) -> f64 {
        self.waits.len().max(self.tries.len()) as f64 * LINE + 20.0
    }
}

pub fn draw() -> Picture {
    let end = TOP + RUNGS.iter().map(Rung::height).sum::<f64>();
    let mut canvas = Canvas::new(
        960.0,
        end + 152.0,
        "The lock order",
        "Locks from the first to the last, with the calls that wait for each and those that only \
         try it; below, the order in which a bundle takes its locks.",
    );
    let heads = [(62.0, "lock"), (WAITS, "who waits for it"), (TRIES, "who only tries")];
    for (x, head) in heads {
        canvas.text(x, 52.0, BODY.large().bold(), head);
    }
    let mut y = TOP;
    for rung in &RUNGS {
        row(&mut canvas, y, rung);
        y += rung.height();
    }
    canvas.arrow(&[(40.0, TOP + 6.0), (40.0, end - 8.0)], BLUE);
    bundle(&mut canvas, end + 24.0);
    canvas.finish()
}

fn row(canvas: &mut Canvas, y: f64, rung: &Rung) {
    let look = if rung.is_object { BLUISH } else { YELLOWISH };
    canvas.frame(area(56.0, y, 326.0, rung.height() - 6.0), look);
    canvas.text(68.0, y + 23.0, BODY.bold().code(), rung.lock);
    canvas.text(372.0, y + 23.0, BODY.ended().in_colour(FAINT), rung.what);
    for (x, lines) in [(WAITS, rung.waits), (TRIES, rung.tries)] {
        canvas.lines(x, y + 23.0, BODY, lines);
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
        let at = area(56.0 + f64::from(place) * 177.0, y + 28.0, 148.0, 66.0);
        canvas.frame(at, QUIET);
        canvas.text(at.middle(), at.y + 27.0, BODY.bold().centred(), what);
        canvas.text(at.middle(), at.y + 50.0, BODY.centred().in_colour(FAINT), order);
        if place > 0 {
            canvas.arrow(&[(at.x - 27.0, at.y + 33.0), (at.x - 3.0, at.y + 33.0)], INK);
        }
    }
}
