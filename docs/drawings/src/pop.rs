//! One pop: which tables it reads, locks and writes, step by step.

use crate::canvas::{
    BLUISH, BODY, Canvas, FAINT, GREENISH, Look, PLAIN, Picture, QUIET, REDDISH, YELLOWISH, area,
};

const TABLES: [&str; 11] = [
    "queue",
    "consumer_group",
    "discovery",
    "timer",
    "admission",
    "segment",
    "cursor",
    "progress",
    "receipt",
    "dead_letter",
    "lease_set",
];

/// A step, the file it is in, and what it does to each table: R, L, I, D, X for I and D, or a
/// space.
const STEPS: [(&str, &str, &str); 9] = [
    ("look up queue and group", "broker/lookup.rs", "RR         "),
    ("where the group has looked; next timer", "broker/lookup.rs", "  RR       "),
    ("move due timers into the log", "broker/push/delayed.rs", "   DII     "),
    ("find partitions that may have work", "broker/pop/search.rs", "     RRR   "),
    ("read the state of one of them", "broker/pop/ordered.rs", "      RR   "),
    ("read its log", "store/segment/log.rs", "     R     "),
    ("lock it; has it moved on?", "store/cursor_or_claim.rs", "      LR   "),
    ("write its next state", "broker/pop/run.rs", "       XXI "),
    ("keep the set, and what was learned", "broker/pop/run.rs, search.rs", "  X       I"),
];

const LEFT: f64 = 336.0;
const COLUMN: f64 = 52.0;
const TOP: f64 = 138.0;
const ROW: f64 = 50.0;

pub fn draw() -> Picture {
    let height = TOP + ROW * STEPS.len() as f64 + 206.0;
    let mut canvas = Canvas::new(
        960.0,
        height,
        "The tables of one pop",
        "A table of the steps of queen_pop and the tables that each step reads, locks, inserts \
         into or deletes from. Up to the lock, a pop only reads, except where a timer is due.",
    );
    for (table, place) in TABLES.iter().zip(0..) {
        let x = LEFT + f64::from(place) * COLUMN + 20.0;
        canvas.rising(x, TOP - 14.0, BODY.code(), table);
    }
    for ((step, file, marks), place) in STEPS.iter().zip(0..) {
        row(&mut canvas, TOP + f64::from(place) * ROW, step, file, marks, place % 2 == 0);
    }
    let bottom = TOP + ROW * STEPS.len() as f64 + 22.0;
    let legend =
        [("R", "read"), ("L", "lock the row, or pass by"), ("I", "insert"), ("D", "delete")];
    let mut x = 36.0;
    for (mark, meaning) in legend {
        chip(&mut canvas, x, bottom, 28.0, mark);
        canvas.text(x + 38.0, bottom + 18.0, BODY, meaning);
        x += if mark == "L" { 250.0 } else { 118.0 };
    }
    let notes = &[
        "A cursor that is not there yet is inserted, which locks it, under shares of first_reads.",
        "The state has the receipt of an expired lease whose messages the pop gets. A dead letter:",
        "at max_deliveries. Deleted: older search states; with each 64th state of a cursor, 64 old",
        "ones, whose receipts move into one row, and receipts that are an hour old.",
        "A pop that finds nothing inserts nothing, locks no row, takes no transaction id. At most",
        "it tries the lock discovery, to read on early.",
    ];
    canvas.lines(36.0, bottom + 52.0, BODY.in_colour(FAINT), notes);
    canvas.finish()
}

fn row(canvas: &mut Canvas, y: f64, step: &str, file: &str, marks: &str, is_shaded: bool) {
    if is_shaded {
        canvas.frame(area(24.0, y, 912.0, ROW), Look { frame: QUIET.fill, ..QUIET });
    }
    canvas.text(36.0, y + 21.0, BODY, step);
    canvas.text(36.0, y + 40.0, BODY.code().in_colour(FAINT), file);
    for (mark, place) in marks.chars().zip(0..) {
        if mark != ' ' {
            let x = LEFT + f64::from(place) * COLUMN;
            match mark {
                'X' => {
                    chip(canvas, x, y + 12.0, 22.0, "I");
                    chip(canvas, x + 24.0, y + 12.0, 22.0, "D");
                }
                _ => chip(canvas, x + 8.0, y + 12.0, 28.0, &mark.to_string()),
            }
        }
    }
}

fn chip(canvas: &mut Canvas, x: f64, y: f64, width: f64, mark: &str) {
    let look = match mark {
        "R" => BLUISH,
        "L" => YELLOWISH,
        "I" => GREENISH,
        "D" => REDDISH,
        _ => PLAIN,
    };
    canvas.frame(area(x, y, width, 26.0), look);
    canvas.text(x + width / 2.0, y + 18.0, BODY.bold().centred(), mark);
}
