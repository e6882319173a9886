//! One partition of a log, and a cursor: a message that is committed late is read late.

use crate::canvas::{
    BLUE, BLUISH, BODY, Canvas, FAINT, GREEN, GREENISH, Look, PLAIN, Picture, QUIET, RED, UNSEEN,
    area,
};

/// A segment: its id, its transaction, how it looks, and what is said of it.
type Segment = (u32, &'static str, Look, &'static str);

const SLOT: f64 = 112.0;
const LEFT: f64 = 40.0;

pub fn draw() -> Picture {
    let mut canvas = Canvas::new(
        960.0,
        640.0,
        "A log with holes, and a cursor",
        "A pop reads segments 101 and 103 while the transaction of 102 is running: its id becomes \
         a hole. When it has committed, the next pop reads 102 first, then what lies beyond 103.",
    );
    let first = "1  The first pop, under snapshot S1";
    let read = &[
        (101, "xid 740", GREENISH, "read"),
        (102, "xid 741", UNSEEN, "runs"),
        (103, "xid 742", GREENISH, "read"),
    ];
    row(&mut canvas, 24.0, first, read, Some(3));
    let cursor = &[
        "position 103",
        "holes 741 and 743",
        "741 runs in S1. 743 has begun:",
        "it lies in [xmax, next xid).",
    ];
    state(&mut canvas, 24.0, "the cursor, in progress", cursor);

    let then = "2  Two transactions commit, a third pushes and commits";
    let committed = &[
        (101, "xid 740", QUIET, ""),
        (102, "xid 741", PLAIN, "committed"),
        (103, "xid 742", QUIET, ""),
        (104, "xid 743", PLAIN, "committed"),
        (105, "xid 744", PLAIN, "committed"),
    ];
    row(&mut canvas, 234.0, then, committed, Some(3));
    let rule = &[
        "102 lies below the position:",
        "its id was drawn early,",
        "its commit came late.",
        "No consumer waited for it.",
    ];
    state(&mut canvas, 234.0, "what happened", rule);

    let second = "3  The next pop, under snapshot S2: late segments first, then those beyond";
    let late = &[
        (101, "xid 740", QUIET, ""),
        (102, "xid 741", BLUISH, "1st: late"),
        (103, "xid 742", QUIET, ""),
        (104, "xid 743", GREENISH, "2nd"),
        (105, "xid 744", GREENISH, "3rd"),
    ];
    row(&mut canvas, 444.0, second, late, Some(5));
    let moved = &[
        "position 105",
        "holes: those of S2",
        "102: id ≤ 103, its xid in the old",
        "holes, and visible in S2.",
    ];
    state(&mut canvas, 444.0, "the cursor, in progress", moved);
    canvas.finish()
}

fn row(canvas: &mut Canvas, y: f64, title: &str, segments: &[Segment], position: Option<u32>) {
    canvas.text(LEFT, y + 18.0, BODY.large().bold(), title);
    let top = y + 44.0;
    for ((id, xid, look, note), place) in segments.iter().zip(0..) {
        let at = area(LEFT + f64::from(place) * SLOT, top, SLOT - 12.0, 62.0);
        canvas.frame(at, *look);
        canvas.text(at.middle(), top + 26.0, BODY.large().bold().centred(), &id.to_string());
        canvas.text(at.middle(), top + 48.0, BODY.centred(), xid);
        let colour = match *note {
            "runs" => RED,
            "1st: late" => BLUE,
            "committed" => FAINT,
            _ => GREEN,
        };
        if !note.is_empty() {
            canvas.text(at.middle(), top + 84.0, BODY.centred().in_colour(colour), note);
        }
    }
    if let Some(read) = position {
        let x = LEFT + f64::from(read) * SLOT - 6.0;
        canvas.line((x, top - 10.0), (x, top + 112.0), BLUE, "");
        canvas.text(x, top + 130.0, BODY.centred().in_colour(BLUE), "position");
    }
}

fn state(canvas: &mut Canvas, y: f64, title: &str, lines: &[&str]) {
    let at = area(650.0, y + 40.0, 282.0, 122.0);
    canvas.frame(at, PLAIN);
    canvas.text(at.x + 14.0, at.y + 25.0, BODY.bold(), title);
    canvas.lines(at.x + 14.0, at.y + 50.0, BODY, lines);
}
