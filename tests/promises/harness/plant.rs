//! A Modbus server on pymodbus, over TCP; what it serves is written in `tests/plant.py`.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use super::{Program, Scratch, command, python, repository};

/// The plant; it ends when it is dropped.
pub(crate) struct Plant {
    /// Its port on loopback.
    pub(crate) port: u16,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    _process: Program,
}

impl Plant {
    /// Starts one that speaks Modbus TCP and returns when it listens.
    pub(crate) fn start(scratch: &Scratch) -> Self {
        Self::framed(scratch, "socket")
    }

    /// Starts one with a framer of pymodbus, `socket` or `rtu`.
    pub(crate) fn framed(scratch: &Scratch, framer: &str) -> Self {
        let mut command = command(python());
        command.arg(repository().join("tests/plant.py")).args(["0", framer]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Program::start("plant.py", &mut command, &scratch.join("plant.log"));
        let to = process.child.stdin.take().expect("a pipe");
        let from = BufReader::new(process.child.stdout.take().expect("a pipe"));
        let mut plant = Self { port: 0, to, from, _process: process };
        plant.port = plant.answer("listening");
        plant
    }

    /// Ends the counting and returns the last value that was read.
    pub(crate) fn freeze(&mut self) -> i64 {
        self.to.write_all(b"freeze\n").expect("a plant that listens");
        self.answer("served")
    }

    fn answer<T: std::str::FromStr>(&mut self, word: &str) -> T {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a plant that answers");
        let number = line.trim().strip_prefix(word).and_then(|text| text.trim().parse().ok());
        number.unwrap_or_else(|| {
            panic!(
                "the plant said `{line}` instead of `{word} …`: is pymodbus installed? See setup"
            )
        })
    }
}
