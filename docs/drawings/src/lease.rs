//! The life of a lease: pop, work, expiry, redelivery, and a late ack that is refused.

use crate::canvas::{
    Area, BLUE, BLUISH, BODY, Canvas, FAINT, GREEN, GREENISH, INK, Look, Picture, QUIET, RED,
    REDDISH, UNSEEN, YELLOWISH, area,
};

const LEFT: f64 = 190.0;
const SECOND: f64 = 7.8;

fn at(second: f64) -> f64 {
    LEFT + second * SECOND
}

fn bar(from: f64, to: f64, y: f64) -> Area {
    area(at(from), y, at(to) - at(from), 40.0)
}

pub fn draw() -> Picture {
    let mut canvas = Canvas::new(
        960.0,
        560.0,
        "The life of a lease",
        "A consumer pops at second 0 with a lease of 60 seconds and works too long. At second 70 \
         another consumer pops the same message as attempt 2. The first one's ack at second 80 is \
         refused with QN002, and its transaction is rolled back, with the charge that it wrote.",
    );
    lane(&mut canvas, 40.0, &["holder of", "lease A"]);
    lane(&mut canvas, 226.0, &["the cursor's", "newest state"]);
    lane(&mut canvas, 336.0, &["another", "consumer"]);
    first_holder(&mut canvas);
    states(&mut canvas);
    second_holder(&mut canvas);
    axis(&mut canvas);
    canvas.finish()
}

fn lane(canvas: &mut Canvas, y: f64, name: &[&str]) {
    canvas.lines(36.0, y + 18.0, BODY.bold(), name);
}

fn labelled(canvas: &mut Canvas, at: Area, look: Look, label: &str) {
    canvas.frame(at, look);
    canvas.text(at.middle(), at.y + 25.0, BODY.centred(), label);
}

fn first_holder(canvas: &mut Canvas) {
    labelled(canvas, bar(0.0, 60.0, 40.0), GREENISH, "lease A: attempt 1, 60 s");
    labelled(canvas, bar(60.0, 80.0, 40.0), UNSEEN, "expired");
    let open = bar(6.0, 80.0, 104.0);
    canvas.frame(open, BLUISH);
    let work = "one transaction: BEGIN, INSERT INTO charges, slow work …";
    canvas.text(open.x + 14.0, open.y + 25.0, BODY, work);
    canvas.arrow(&[(at(80.0), 124.0), (at(80.0), 168.0)], RED);
    let refused = "queen_ack(A): QN002, and ROLLBACK takes the charge back";
    canvas.text(at(80.0) + 12.0, 188.0, BODY.ended().in_colour(RED), refused);
}

fn states(canvas: &mut Canvas) {
    labelled(canvas, bar(0.0, 70.0, 226.0), YELLOWISH, "A holds the message, delivered once");
    labelled(canvas, bar(70.0, 88.0, 226.0), YELLOWISH, "B holds it");
    labelled(canvas, bar(88.0, 96.0, 226.0), QUIET, "done");
    let early = "An ack of A between second 60 and 70 is refused as well: QN001.";
    canvas.text(at(2.0), 292.0, BODY.in_colour(FAINT), early);
}

fn second_holder(canvas: &mut Canvas) {
    labelled(canvas, bar(70.0, 88.0, 336.0), GREENISH, "lease B");
    canvas.arrow(&[(at(70.0), 336.0), (at(70.0), 268.0)], BLUE);
    canvas.arrow(&[(at(88.0), 336.0), (at(88.0), 268.0)], GREEN);
    let popped = &[
        "Its pop finds that A's time is over. It writes the next",
        "state (attempt 2, lease B), with a receipt of A: expired.",
    ];
    canvas.lines(at(68.0), 352.0, BODY.ended().in_colour(BLUE), popped);
    let done = "INSERT INTO charges, queen_ack(B), COMMIT: charged once";
    canvas.text(at(95.0), 406.0, BODY.ended().in_colour(GREEN), done);
}

fn axis(canvas: &mut Canvas) {
    let y = 456.0;
    canvas.arrow(&[(LEFT, y), (at(96.0), y)], INK);
    for second in [0.0, 20.0, 40.0, 60.0, 80.0] {
        canvas.line((at(second), y - 6.0), (at(second), y + 6.0), INK, "");
        canvas.text(at(second), y + 26.0, BODY.centred(), &format!("{second} s"));
    }
    for (from, to) in [(28.0, 40.0), (80.0, 104.0), (144.0, 168.0), (200.0, 226.0), (424.0, y)] {
        canvas.line((at(60.0), from), (at(60.0), to), REDDISH.frame, "4 4");
    }
    canvas.text(at(60.0), y + 48.0, BODY.centred().in_colour(RED), "deadline of A");
    canvas.text(at(0.0), y + 48.0, BODY.in_colour(GREEN), "queen_pop");
    let clock = "Nothing runs at the deadline: each call compares it with the clock.";
    canvas.text(LEFT, y + 84.0, BODY.in_colour(FAINT), clock);
}
