//! `queen-history FILE [SLACK]`: checks a log. Prints what is wrong, and fails if anything is.

use std::process::ExitCode;

/// How far the clocks of server and clients may be apart unless told, in microseconds.
const SLACK: i64 = 50_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (file, slack) = (arguments.next(), arguments.next());
    let slack = slack.map_or(Ok(SLACK), |slack| slack.parse());
    let (Some(file), Ok(slack)) = (file, slack) else {
        eprintln!("usage: queen-history FILE [SLACK in microseconds]");
        return ExitCode::FAILURE;
    };
    let log = match std::fs::read_to_string(&file) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let events = match queen_history::read(&log) {
        Ok(events) => events,
        Err((line, error)) => {
            eprintln!("{file}:{line}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let faults = queen_history::check(&events, slack);
    faults.iter().for_each(|fault| println!("{fault}"));
    println!("{} events, {} faults", events.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
