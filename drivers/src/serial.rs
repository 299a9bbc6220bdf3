//! Serial ports: their settings, and opening one.
//!
//! A port is opened exclusively, so that a second program on the line is refused rather than
//! muddled with. A port that was unplugged reads as the end of its stream (0 bytes) or as an error;
//! both end the connection, and closing it is dropping the stream. Knows no protocol and no retry.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The parity bit of each character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Parity {
    /// No parity bit.
    None,
    /// The number of ones is even.
    #[default]
    Even,
    /// The number of ones is odd.
    Odd,
}

impl Parity {
    /// The letter in `8E1`.
    fn letter(self) -> char {
        match self {
            Self::None => 'N',
            Self::Even => 'E',
            Self::Odd => 'O',
        }
    }
}

/// Speeds that every Linux port driver can be asked for (termios), in bits a second.
pub const BAUDS: [u32; 17] = [
    300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200, 230_400, 460_800,
    500_000, 576_000, 921_600, 1_000_000,
];

/// How a port is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSettings {
    /// The device file.
    pub path: String,
    /// Bits a second.
    pub baud: u32,
    /// Parity bit of each character.
    pub parity: Parity,
    /// Data bits of each character: 7 or 8.
    pub data_bits: u8,
    /// Stop bits of each character: 1 or 2.
    pub stop_bits: u8,
}

impl PortSettings {
    /// Bits that one character takes on the line: start, data, parity, stop.
    pub fn character_bits(&self) -> u32 {
        let parity = u32::from(self.parity != Parity::None);
        1 + u32::from(self.data_bits) + parity + u32::from(self.stop_bits)
    }

    /// How long `count` characters take on the line.
    pub fn characters(&self, count: u32) -> Duration {
        let bits = u64::from(count) * u64::from(self.character_bits());
        Duration::from_nanos(bits * 1_000_000_000 / u64::from(self.baud.max(1)))
    }

    /// What is wrong: the field's name, what, and what would be right. The path is called `port`.
    pub fn problems(&self) -> Vec<(&'static str, String, String)> {
        let mut found = Vec::new();
        if !self.path.starts_with('/') {
            let message = format!("`port` is {:?}, which is no device file", self.path);
            let hint = "a path such as `/dev/serial/by-id/usb-…` or `/dev/ttyS1`";
            found.push(("port", message, hint.to_owned()));
        }
        if !BAUDS.contains(&self.baud) {
            let known: Vec<_> = BAUDS.iter().map(ToString::to_string).collect();
            let message = format!("no port runs at {} bits a second", self.baud);
            found.push(("baud", message, format!("one of {}", known.join(", "))));
        }
        if !(7..=8).contains(&self.data_bits) {
            let message = format!("a character has {} data bits", self.data_bits);
            found.push(("data_bits", message, "7 or 8".to_owned()));
        }
        if !(1..=2).contains(&self.stop_bits) {
            let message = format!("a character has {} stop bits", self.stop_bits);
            found.push(("stop_bits", message, "1 or 2".to_owned()));
        }
        found
    }
}

impl std::fmt::Display for PortSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (parity, stop) = (self.parity.letter(), self.stop_bits);
        write!(f, "{} ({} {}{parity}{stop})", self.path, self.baud, self.data_bits)
    }
}

#[cfg(feature = "io")]
pub(crate) use io::open;

#[cfg(feature = "io")]
mod io {
    use std::io;

    use tokio_serial::{DataBits, FlowControl, SerialPort, SerialStream, StopBits};

    use super::{Parity, PortSettings};

    /// Opens the port exclusively, with what was received before thrown away. Does not wait for a
    /// carrier, so that it returns at once.
    pub(crate) fn open(settings: &PortSettings) -> io::Result<SerialStream> {
        let builder = tokio_serial::new(&settings.path, settings.baud)
            .parity(match settings.parity {
                Parity::None => tokio_serial::Parity::None,
                Parity::Even => tokio_serial::Parity::Even,
                Parity::Odd => tokio_serial::Parity::Odd,
            })
            .data_bits(if settings.data_bits == 7 { DataBits::Seven } else { DataBits::Eight })
            .stop_bits(if settings.stop_bits == 2 { StopBits::Two } else { StopBits::One })
            .flow_control(FlowControl::None);
        let stream = SerialStream::open(&builder)?;
        stream.clear(tokio_serial::ClearBuffer::Input)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_take_their_time() {
        // Modbus over serial line V1.02, clause 2.5.1: 11 bits a character; at 9,600 bits a second
        // one takes 1.1458 ms.
        let port = PortSettings {
            path: "/dev/ttyS1".to_owned(),
            baud: 9600,
            parity: Parity::Even,
            data_bits: 8,
            stop_bits: 1,
        };
        assert_eq!(port.characters(1), Duration::from_nanos(1_145_833));
        assert_eq!(port.to_string(), "/dev/ttyS1 (9600 8E1)");
        assert!(port.problems().is_empty());
        let plain = PortSettings { parity: Parity::None, ..port };
        assert_eq!(plain.character_bits(), 10);
        let wrong = PortSettings {
            path: "COM1".to_owned(),
            baud: 9601,
            parity: Parity::Odd,
            data_bits: 9,
            stop_bits: 0,
        };
        let fields: Vec<_> = wrong.problems().into_iter().map(|p| p.0).collect();
        assert_eq!(fields, ["port", "baud", "data_bits", "stop_bits"]);
    }
}
