//! A simulated plant: Modbus TCP servers whose registers follow waveforms, from one YAML document.
//!
//! Waveforms are pure functions of the time since the start. A counter is different: it counts
//! whole reads of its point, so that a client which polls gets consecutive numbers and a missing
//! number is a lost reading. What was served is counted where the reply leaves for the socket, and
//! not by the client; see [`ServedCounter`]. This module knows nothing of our own client or its
//! encoder: the register images are written from the specification (Modbus Application Protocol
//! V1.1b3, sections 4.2 and 6.1 to 6.4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::south::generate::{Problem, Wave};
use crate::south::modbus::{Order, RegisterKind, ValueType};
use crate::types::{Name, UnitId};

#[cfg(feature = "io")]
mod ledger;
#[cfg(feature = "io")]
mod server;
#[cfg(test)]
mod tests;
mod words;

#[cfg(feature = "io")]
pub use ledger::{Served, ServedCounter};
#[cfg(feature = "io")]
pub use server::Sim;

/// A simulated plant.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimDoc {
    /// The servers, each on its own port.
    pub servers: Vec<SimServer>,
}

/// One Modbus TCP server.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimServer {
    /// The server's name.
    pub name: Name,
    /// IP address and port to listen on; port 0 takes a free one.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The units behind the server. A request to any other unit is answered with exception 0B.
    pub units: Vec<SimUnit>,
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

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
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
            let mut units = BTreeSet::new();
            for (index, unit) in server.units.iter().enumerate() {
                let field = format!("{field}.units[{index}]");
                if !units.insert(unit.unit_id) {
                    problems.push(twice(format!("{field}.unit_id"), &unit.unit_id));
                }
                problems.extend(unit.problems(&field));
            }
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
