//! Other sessions of the server, for what only another transaction can do. They speak PostgreSQL's
//! protocol over the server's socket: simple queries, whose answers are text.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pgrx::{Spi, pg_sys};

use super::backend::setting;

/// No statement of a test takes as long as this, and no test waits longer for another session.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A session beside the test's own. It ends, and rolls its transaction back, when it is dropped.
pub struct OtherSession {
    stream: UnixStream,
    pub pid: u32,
}

/// An answer: the rows, each with the text of its columns.
pub type TextRows = Vec<Vec<Option<String>>>;

/// An ERROR as the client sees it.
#[derive(Debug, PartialEq)]
pub struct ClientError {
    pub code: String,
    pub message: String,
}

impl OtherSession {
    pub fn connect() -> Self {
        Self::connect_to(&current_database())
    }

    /// A session of another database.
    pub fn connect_to(database: &str) -> Self {
        let directory = setting(c"unix_socket_directories");
        let path = format!("{directory}/.s.PGSQL.{}", setting(c"port"));
        let stream = UnixStream::connect(path).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let mut session = Self { stream, pid: 0 };
        let mut startup = 196_608u32.to_be_bytes().to_vec();
        startup.extend(format!("user\0{}\0database\0{database}\0\0", session_user()).bytes());
        session.write(&[], &startup);
        session.answer().expect("a session");
        session
    }

    /// Begin to run statements; [`Self::answer`] waits for their end.
    pub fn send(&mut self, sql: &str) {
        self.write(b"Q", &[sql.as_bytes(), b"\0"].concat());
    }

    /// The rows of what was sent, or its error.
    pub fn answer(&mut self) -> Result<TextRows, ClientError> {
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let (kind, body) = self.message();
            match kind {
                b'D' => rows.push(columns(&body)),
                b'E' => error = Some(client_error(&body)),
                b'K' => self.pid = u32::from_be_bytes(body[..4].try_into().expect("a number")),
                b'Z' => return error.map_or(Ok(rows), Err),
                _ => {}
            }
            // A session that could not begin says no more.
            if let (b'E', 0) = (kind, self.pid) {
                return Err(error.expect("an error"));
            }
        }
    }

    pub fn try_run(&mut self, sql: &str) -> Result<TextRows, ClientError> {
        self.send(sql);
        self.answer()
    }

    pub fn run(&mut self, sql: &str) -> TextRows {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The only value of the answer, as text.
    pub fn value(&mut self, sql: &str) -> String {
        self.run(sql)[0][0].clone().expect("no NULL")
    }

    /// Wait until this session waits for a lock.
    pub fn wait_until_blocked(&self) {
        let waits =
            format!("SELECT FROM pg_catalog.pg_locks WHERE pid = {} AND NOT granted", self.pid);
        let waits = format!("SELECT EXISTS ({waits})");
        wait_until("the other session to wait for a lock", || {
            Spi::get_one::<bool>(&waits).expect("a look at the locks") == Some(true)
        });
    }

    /// Begin to end this session's transaction, by `end`, as soon as the test's own session waits
    /// for a lock.
    pub fn send_when_this_one_waits(&mut self, end: &str) {
        // SAFETY: a plain global of the process.
        let pid = unsafe { pg_sys::MyProcPid };
        let seconds = DEADLINE.as_secs() / 2;
        self.send(&format!(
            "DO $$
             DECLARE until timestamptz := clock_timestamp() + interval '{seconds} seconds';
             BEGIN
                 WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pid = {pid} AND NOT granted) LOOP
                     IF clock_timestamp() > until THEN RAISE 'the test does not wait'; END IF;
                     PERFORM pg_sleep(0.005);
                 END LOOP;
             END $$; {end}"
        ));
    }

    fn write(&mut self, kind: &[u8], body: &[u8]) {
        let length = (body.len() as u32 + 4).to_be_bytes();
        self.stream.write_all(&[kind, &length, body].concat()).expect("the server listens");
    }

    fn message(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).expect("an answer within the deadline");
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; length as usize - 4];
        self.stream.read_exact(&mut body).expect("an answer within the deadline");
        (head[0], body)
    }
}

/// Wait for a state that will come.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn columns(body: &[u8]) -> Vec<Option<String>> {
    let mut rest = &body[2..];
    let mut columns = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        let (value, after) = after.split_at(length.max(0) as usize);
        let text = || String::from_utf8(value.to_vec()).expect("UTF-8");
        columns.push((length >= 0).then(text));
        rest = after;
    }
    columns
}

fn client_error(body: &[u8]) -> ClientError {
    let text = String::from_utf8_lossy(body);
    let fields: HashMap<_, _> =
        text.split('\0').filter(|field| !field.is_empty()).map(|field| field.split_at(1)).collect();
    let field = |kind| fields.get(kind).copied().unwrap_or_default().to_owned();
    ClientError { code: field("C"), message: field("M") }
}

fn current_database() -> String {
    // SAFETY: a plain global of the process; the name is copied.
    let name = unsafe { pg_sys::get_database_name(pg_sys::MyDatabaseId) };
    text(name)
}

fn session_user() -> String {
    // SAFETY: the session's user is a role; the name is copied.
    let name = unsafe { pg_sys::GetUserNameFromId(pg_sys::GetSessionUserId(), false) };
    text(name)
}

fn text(name: *mut std::ffi::c_char) -> String {
    // SAFETY: a C string of PostgreSQL.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
