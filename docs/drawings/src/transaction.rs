//! Effect, marker and ack in one transaction: after it all of them are there, or none.

use crate::canvas::{
    Area, BLUISH, BODY, Canvas, FAINT, GREEN, GREENISH, INK, PLAIN, Picture, QUIET, RED, REDDISH,
    YELLOWISH, area,
};

const CHARGES: Area = area(420.0, 82.0, 240.0, 64.0);
const MARKER: Area = area(420.0, 182.0, 240.0, 64.0);
const PROGRESS: Area = area(420.0, 282.0, 240.0, 84.0);

pub fn draw() -> Picture {
    let mut canvas = Canvas::new(
        960.0,
        528.0,
        "Effect, marker and acknowledgement in one transaction",
        "A transaction inserts a charge, puts a marker and acknowledges the message. A commit \
         makes all of that true at one moment. A rollback leaves none of it, and the message \
         comes again.",
    );
    canvas.text(40.0, 50.0, BODY.large().bold(), "the consumer's transaction");
    canvas.text(420.0, 50.0, BODY.large().bold(), "rows it writes");
    canvas.text(720.0, 50.0, BODY.large().bold(), "how it ends");
    statements(&mut canvas);
    canvas.panel(CHARGES, PLAIN, "charges", &["the effect: your own table"]);
    canvas.panel(MARKER, YELLOWISH, "queen_mq.marker", &["charge:ORD-1 exists"]);
    canvas.panel(
        PROGRESS,
        YELLOWISH,
        "queen_mq.progress",
        &["the next state: settled;", "how the lease ended"],
    );
    for table in [CHARGES, MARKER, PROGRESS] {
        let y = table.y + 32.0;
        canvas.arrow(&[(384.0, y), (table.x - 3.0, y)], INK);
    }
    ends(&mut canvas);
    canvas.finish()
}

fn statements(canvas: &mut Canvas) {
    canvas.frame(area(28.0, 70.0, 350.0, 434.0), QUIET);
    let statements = [
        (114.0, "INSERT INTO charges …"),
        (206.0, "queen_kv_put_if_absent("),
        (226.0, "  …, required => true)"),
        (318.0, "queen_ack(lease_id)"),
        (450.0, "COMMIT"),
    ];
    for (y, statement) in statements {
        canvas.text(44.0, y + 5.0, BODY.code().bold(), statement);
    }
    canvas.text(44.0, 141.0, BODY.in_colour(FAINT), "the charge");
    canvas.text(44.0, 255.0, BODY.in_colour(FAINT), "QN010 if the marker is there");
    canvas.text(44.0, 347.0, BODY.in_colour(FAINT), "QN001, QN002 if the lease is lost");
    canvas.line((44.0, 406.0), (362.0, 406.0), FAINT, "3 4");
}

fn ends(canvas: &mut Canvas) {
    let good = area(704.0, 82.0, 232.0, 132.0);
    canvas.frame(good, GREENISH);
    canvas.text(good.x + 14.0, good.y + 28.0, BODY.bold().in_colour(GREEN), "COMMIT");
    canvas.lines(
        good.x + 14.0,
        good.y + 54.0,
        BODY,
        &["One commit record:", "effect, marker and ack", "are true at one moment."],
    );
    let bad = area(704.0, 234.0, 232.0, 132.0);
    canvas.frame(bad, REDDISH);
    canvas.text(bad.x + 14.0, bad.y + 28.0, BODY.bold().in_colour(RED), "an error, or a crash");
    canvas.lines(
        bad.x + 14.0,
        bad.y + 54.0,
        BODY,
        &["None of them is true.", "The lease ends by time;", "the message comes again."],
    );
    canvas.arrow(&[(CHARGES.right(), 114.0), (good.x - 3.0, 114.0)], GREEN);
    canvas.arrow(&[(PROGRESS.right(), 324.0), (bad.x - 3.0, 324.0)], RED);
    let after = area(420.0, 392.0, 516.0, 112.0);
    canvas.frame(after, BLUISH);
    canvas.text(
        after.x + 14.0,
        after.y + 28.0,
        BODY.bold(),
        "and if the reply to COMMIT was lost?",
    );
    canvas.lines(
        after.x + 14.0,
        after.y + 54.0,
        BODY,
        &[
            "The ack again: the receipt says that it was settled before.",
            "The message again (its ack did not commit): no marker is there.",
            "A second worker on one marker: one wins, the other gets QN010.",
        ],
    );
}
