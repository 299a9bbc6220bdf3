//! A simulated plant: Modbus servers whose registers follow waveforms, from one YAML document. Each
//! speaks Modbus TCP, RTU over TCP, or RTU on a pty, and shows the field's faults by script or by
//! command.
//!
//! Waveforms are pure functions of the time since the start. A counter is different: it counts
//! whole reads of its point, so that a client which polls gets consecutive numbers and a missing
//! number is a lost reading. What was served is counted where the reply leaves for the socket, and
//! not by the client; see [`ServedCounter`]. This module knows nothing of our own client or its
//! encoder: the register images are written from the specification (Modbus Application Protocol
//! V1.1b3, sections 4.2 and 6.1 to 6.4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::south::generate::{Problem, Wave};
use crate::south::modbus::{Order, RegisterKind, ValueType};
use crate::types::{Name, UnitId};

#[cfg(feature = "io")]
mod alter;
#[cfg(feature = "io")]
mod command;
mod fault;
#[cfg(test)]
#[cfg(feature = "io")]
mod fault_tests;
#[cfg(feature = "io")]
mod image;
#[cfg(feature = "io")]
mod ledger;
#[cfg(feature = "io")]
mod port;
#[cfg(feature = "io")]
mod schedule;
#[cfg(feature = "io")]
mod server;
#[cfg(feature = "io")]
mod talk;
#[cfg(test)]
mod tests;
#[cfg(feature = "io")]
mod wire;
mod words;

#[cfg(feature = "io")]
pub use command::{Command, NoCommand};
pub use fault::{Delay, FaultKind, Hole, SimFault};
#[cfg(feature = "io")]
pub use ledger::{Served, ServedCounter};
#[cfg(feature = "io")]
pub use server::{Place, Sim};

/// A simulated plant.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimDoc {
    /// The servers, each on its own port.
    pub servers: Vec<SimServer>,
}

/// One Modbus server: on a TCP port, or on a serial port that is a pty.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimServer {
    /// The server's name.
    pub name: Name,
    /// IP address and port to listen on; port 0 takes a free one. Left out: a free port of
    /// loopback.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// How frames lie on TCP.
    #[serde(default)]
    pub framing: Option<SimFraming>,
    /// Serve RTU on a pty in place of TCP.
    #[serde(default)]
    pub rtu: Option<SimRtu>,
    /// The units behind the server. On TCP a request to any other unit is answered with exception
    /// 0B; in RTU frames nobody answers it.
    pub units: Vec<SimUnit>,
    /// Faults by script, each counted from the start.
    #[serde(default)]
    pub faults: Vec<SimFault>,
}

/// How frames lie on TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SimFraming {
    /// Modbus TCP: MBAP header, no CRC.
    #[default]
    Tcp,
    /// RTU over TCP, as transparent serial servers do it: unit id, PDU, CRC.
    Rtu,
}

/// A serial port that the simulator makes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimRtu {
    /// Path of the symbolic link to the pty, which a client opens as its serial port. A link to a
    /// pty that stands there is replaced; anything else is refused.
    pub link: PathBuf,
}

/// One unit and its register map. A read that touches any other address gets exception 02.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimUnit {
    /// The unit id.
    pub unit_id: UnitId,
    /// The register map.
    pub points: Vec<SimPoint>,
}

/// One simulated point.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimPoint {
    /// The point's name.
    pub name: Name,
    /// The address space.
    pub register: RegisterKind,
    /// 0-based protocol address of the first register or bit.
    pub address: u16,
    /// How the value is written. Left out: `bool` for coils and discrete inputs, else `u16`.
    #[serde(default, rename = "type")]
    pub value_type: Option<ValueType>,
    /// Order of the bytes of a 32 or 64 bit value.
    #[serde(default)]
    pub order: Order,
    /// Factor from raw value to the unit: the registers hold the value divided by it.
    #[serde(default)]
    pub scale: Option<f64>,
    /// How the value comes about. A `bool` is true where the value is 0.5 or more; a counter moves
    /// by one with each reply that carries the whole point.
    pub value: Wave,
}

impl SimServer {
    /// How the server's frames lie.
    pub fn effective_framing(&self) -> SimFraming {
        match self.rtu {
            Some(_) => SimFraming::Rtu,
            None => self.framing.unwrap_or_default(),
        }
    }

    fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.rtu.is_some() {
            for (name, given) in
                [("listen", self.listen.is_some()), ("framing", self.framing.is_some())]
            {
                if given {
                    let message = "is for TCP, but this server is on a pty".to_owned();
                    let hint = format!("leave `{name}` or `rtu` out");
                    problems.push((format!("{field}.{name}"), message, Some(hint)));
                }
            }
        }
        let framing = self.effective_framing();
        let mut units = BTreeSet::new();
        for (index, unit) in self.units.iter().enumerate() {
            let field = format!("{field}.units[{index}]");
            if !units.insert(unit.unit_id) {
                problems.push(twice(format!("{field}.unit_id"), &unit.unit_id));
            }
            // Modbus over Serial Line V1.02, section 2.2.
            if framing == SimFraming::Rtu && !(1..=247).contains(&unit.unit_id.get()) {
                let message = format!("{} is no address of a serial line", unit.unit_id);
                let hint = Some("take 1 to 247".to_owned());
                problems.push((format!("{field}.unit_id"), message, hint));
            }
            problems.extend(unit.problems(&field));
        }
        for (index, fault) in self.faults.iter().enumerate() {
            problems.extend(fault.problems(&format!("{field}.faults[{index}]"), framing, &units));
        }
        problems
    }
}

impl SimPoint {
    /// The value's type, with the default filled in.
    pub fn effective_type(&self) -> ValueType {
        self.value_type.unwrap_or(if self.is_bits() { ValueType::Bool } else { ValueType::U16 })
    }

    /// Registers or bits that the point takes.
    pub fn width(&self) -> u16 {
        words::width(self.effective_type())
    }

    fn is_bits(&self) -> bool {
        matches!(self.register, RegisterKind::Coil | RegisterKind::Discrete)
    }

    fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = self.value.problems(&format!("{field}.value"));
        let mut say = |below: &str, message: String, hint: &str| {
            problems.push((format!("{field}.{below}"), message, Some(hint.to_owned())));
        };
        let Some(range) = words::range(self.effective_type()) else {
            let hint = "take a type of numbers, such as `f32`";
            say("type", "text and bytes are not simulated".to_owned(), hint);
            return problems;
        };
        if self.is_bits() && self.effective_type() != ValueType::Bool {
            say("type", "a coil or discrete input holds one bit".to_owned(), "take `bool`");
        }
        if u32::from(self.address) + u32::from(self.width()) > 0x1_0000 {
            say("address", "runs beyond 65535".to_owned(), "take a lower address");
        }
        if self.scale.is_some_and(|scale| !scale.is_normal()) {
            say("scale", "is not a factor".to_owned(), "write a number other than 0");
        }
        if self.scale.is_some() && matches!(self.value, Wave::Counter(_)) {
            say("scale", "a counter counts whole numbers".to_owned(), "leave `scale` out");
        }
        if let Wave::Choice(_) = self.value {
            let hint = "take `constant`, `counter`, `sine` or `ramp`";
            say("value", "a register holds a number".to_owned(), hint);
        }
        if let Some((low, high)) = words::extremes(&self.value, self.scale)
            && !(range.contains(&low) && range.contains(&high))
        {
            let message = format!(
                "goes from {low} to {high} in its registers, but they hold {} to {}",
                range.start(),
                range.end()
            );
            say("value", message, "take a wider type, or a `scale`");
        }
        problems
    }
}

impl SimDoc {
    /// Everything that is wrong, without side effects.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        if self.servers.is_empty() {
            let hint = Some("list at least one".to_owned());
            problems.push(("servers".to_owned(), "is empty".to_owned(), hint));
        }
        let mut names = BTreeSet::new();
        for (index, server) in self.servers.iter().enumerate() {
            let field = format!("servers[{index}]");
            if !names.insert(&server.name) {
                problems.push(twice(format!("{field}.name"), &server.name));
            }
            problems.extend(server.problems(&field));
        }
        problems
    }
}

impl SimUnit {
    fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut names = BTreeSet::new();
        let mut taken: BTreeMap<(RegisterKind, u16), &Name> = BTreeMap::new();
        for (index, point) in self.points.iter().enumerate() {
            let field = format!("{field}.points[{index}]");
            if !names.insert(&point.name) {
                problems.push(twice(format!("{field}.name"), &point.name));
            }
            problems.extend(point.problems(&field));
            let addresses = (0..point.width()).filter_map(|n| point.address.checked_add(n));
            let overlap = addresses
                .filter_map(|address| taken.insert((point.register, address), &point.name))
                .last();
            if let Some(other) = overlap {
                let message = format!("`{}` and `{other}` lie on the same address", point.name);
                let hint = Some("move one of them".to_owned());
                problems.push((format!("{field}.address"), message, hint));
            }
        }
        problems
    }
}

fn twice(field: String, what: &dyn std::fmt::Display) -> Problem {
    let hint = Some("write each one once".to_owned());
    (field, format!("`{what}` stands twice"), hint)
}
