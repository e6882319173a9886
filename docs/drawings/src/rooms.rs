//! The rooms of the house, and who calls whom.

use crate::canvas::{
    Area, BLUE, BLUISH, BODY, Canvas, FAINT, GREENISH, INK, PLAIN, Picture, QUIET, YELLOWISH, area,
};

const SQL: Area = area(40.0, 24.0, 580.0, 42.0);
const API: Area = area(40.0, 104.0, 580.0, 76.0);
const BROKER: Area = area(40.0, 222.0, 580.0, 96.0);
const ENGINE: Area = area(40.0, 366.0, 264.0, 96.0);
const STORE: Area = area(344.0, 366.0, 276.0, 96.0);
const WORKER: Area = area(680.0, 222.0, 240.0, 96.0);
const WAIT: Area = area(680.0, 366.0, 240.0, 96.0);
const PG: Area = area(344.0, 506.0, 576.0, 76.0);
const SERVER: Area = area(344.0, 620.0, 576.0, 42.0);

pub fn draw() -> Picture {
    let mut canvas = Canvas::new(
        960.0,
        690.0,
        "The rooms and the arrows between them",
        "SQL calls api, api calls broker, broker calls engine, store and wait. The worker calls \
         broker. Store and wait call pg, which calls PostgreSQL. Nothing calls a room above it.",
    );
    boxes(&mut canvas);
    let down = |from: Area, to: Area, x: f64| [(x, from.bottom()), (x, to.y - 2.0)];
    canvas.arrow(&down(SQL, API, SQL.middle()), FAINT);
    canvas.arrow(&down(API, BROKER, API.middle()), INK);
    canvas.arrow(&down(BROKER, ENGINE, ENGINE.middle()), INK);
    canvas.arrow(&down(BROKER, STORE, STORE.middle()), INK);
    canvas.arrow(&[(600.0, BROKER.bottom()), (WAIT.x - 2.0, 372.0)], INK);
    canvas.arrow(&[(WORKER.x, 270.0), (BROKER.right() + 2.0, 270.0)], INK);
    canvas.arrow(&[(STORE.x, 414.0), (ENGINE.right() + 2.0, 414.0)], INK);
    canvas.arrow(&[(STORE.right(), 430.0), (WAIT.x - 2.0, 430.0)], INK);
    canvas.arrow(&down(STORE, PG, STORE.middle()), INK);
    canvas.arrow(&down(WAIT, PG, WAIT.middle()), INK);
    canvas.arrow(&down(PG, SERVER, PG.middle()), FAINT);
    canvas.arrow(&[(API.right(), 142.0), (800.0, 142.0), (800.0, WORKER.y - 2.0)], INK);
    canvas.text(636.0, 132.0, BODY.in_colour(FAINT), "says that the database is in use");
    let rule = &[
        "An arrow: calls. A room may also",
        "call rooms further down, never one",
        "above it. The engine calls nothing:",
        "it runs without a server.",
    ];
    canvas.lines(40.0, 526.0, BODY.in_colour(BLUE), rule);
    canvas.finish()
}

fn boxes(canvas: &mut Canvas) {
    canvas.frame(SQL, QUIET);
    let sql = "SELECT … FROM queen_push(…), queen_pop(…), queen_ack(…)";
    canvas.text(SQL.middle(), SQL.y + 26.0, BODY.code().centred(), sql);
    let one = "one file for each family of SQL functions:";
    let flow = "arguments in, one call of the broker, rows out";
    canvas.panel(API, BLUISH, "src/api", &[one, flow]);
    let verbs = "push · pop · settle · group · hold · housekeeping · stats";
    canvas.panel(
        BROKER,
        BLUISH,
        "src/broker",
        &["what each verb does in a transaction, in which order", verbs],
    );
    canvas.panel(
        ENGINE,
        GREENISH,
        "crates/engine",
        &["decides: what comes next,", "what an ack does"],
    );
    canvas.panel(
        STORE,
        YELLOWISH,
        "src/store",
        &["one file for each table:", "its statements, its locks"],
    );
    canvas.panel(
        WORKER,
        PLAIN,
        "src/worker",
        &["background processes", "that sweep each database"],
    );
    canvas.panel(WAIT, PLAIN, "src/wait", &["sessions that sleep,", "and are woken at a commit"]);
    canvas.panel(
        PG,
        YELLOWISH,
        "src/pg",
        &["PostgreSQL and nothing of ours: statements, scans, locks of rows,", "guards, caches"],
    );
    canvas.frame(SERVER, QUIET);
    let server = "PostgreSQL: tables, indexes, WAL, disk";
    canvas.text(SERVER.middle(), SERVER.y + 26.0, BODY.centred(), server);
}
