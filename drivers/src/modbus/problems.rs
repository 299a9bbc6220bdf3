//! What cannot work in a device's configuration: pure, all problems at once, in a person's words.
//!
//! The configuration check calls this for the file, the page and the cluster alike; a device that
//! is built with a problem is refused with the same words. Names of points, duplicates and links
//! are the document's business, not this module's.

use crate::modbus::plan::{ADDRESSES, BITS_MAX, REGISTERS_MAX};
use crate::south::modbus::{
    Bus, Framing, ModbusDevice, ModbusPoint, Order, RegisterKind, RtuBus, TcpBus, TidCheck,
    ValueType,
};
use crate::types::Span;

/// One thing that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointProblem {
    /// Index into [`ModbusDevice::points`]; `None` for a field of the device itself.
    pub point_index: Option<usize>,
    /// The field's name in the configuration.
    pub field: &'static str,
    /// What is wrong, with the point's name and address.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

impl ModbusDevice {
    /// Everything that cannot work in this configuration, in the order of the document.
    pub fn problems(&self) -> Vec<PointProblem> {
        let mut found = Problems { point: None, all: Vec::new() };
        self.check_device(&mut found);
        for (index, point) in self.points.iter().enumerate() {
            found.point = Some(index);
            check_fields(point, &mut found);
            check_type(point, &mut found);
            self.check_place(point, &mut found);
        }
        found.all
    }

    fn check_device(&self, found: &mut Problems) {
        if self.points.is_empty() {
            found.add("points", "the device has no points", "list at least one point");
        }
        self.check_polls(found);
        if self.polls.iter().any(|p| p.every.period().is_some_and(|every| every.is_zero())) {
            found.add("polls", "a poll group's `every` is zero", "write a time such as `1s`");
        }
        if self.timeout.duration().is_zero() {
            found.add("timeout", "`timeout` is zero", "write a time such as `1s`");
        }
        for (field, value, most, section) in [
            ("max_registers", self.max_registers, REGISTERS_MAX, "6.3"),
            ("max_bits", self.max_bits, BITS_MAX, "6.1"),
        ] {
            if value == 0 || value > most {
                let hint = format!("1 to {most} (Modbus specification, section {section})");
                found.add(field, format!("`{field}` is {value}"), hint);
            }
        }
    }

    /// Each poll group has its own name and at least one point.
    fn check_polls(&self, found: &mut Problems) {
        if self.polls.is_empty() {
            let hint = "leave `polls` out for one group that is read each second";
            found.add("polls", "there is no poll group", hint);
        }
        for (index, poll) in self.polls.iter().enumerate() {
            if self.polls[..index].iter().any(|p| p.name == poll.name) {
                let message = format!("two poll groups are called `{}`", poll.name);
                found.add("polls", message, "give each group its own name");
            } else if self.polls.len() > 1 && self.group(index).points.is_empty() {
                let message = format!("no point is in the poll group `{}`", poll.name);
                let hint =
                    format!("write `poll: {}` at its points, or remove the group", poll.name);
                found.add("polls", message, hint);
            }
        }
    }

    /// Checks address, width and poll group of a point against the device.
    fn check_place(&self, point: &ModbusPoint, found: &mut Problems) {
        let (quantity, limit) = (point.quantity(), self.limit(point.register));
        if point.end() > ADDRESSES {
            let message = format!(
                "point `{}` at {} {} needs {quantity} registers and ends past 65535",
                point.name,
                point.register.name(),
                point.address
            );
            let last = ADDRESSES - u32::from(quantity);
            found.add("address", message, format!("the last possible address is {last}"));
        } else if quantity > limit && limit > 0 {
            let message = format!(
                "point `{}` at {} {} needs {quantity} registers, but a request may read {limit}",
                point.name,
                point.register.name(),
                point.address
            );
            let field = if point.length.is_some() { "length" } else { "type" };
            let hint = "a point is never read in two requests: make it shorter, or raise \
                        `max_registers` if the device allows it";
            found.add(field, message, hint);
        }
        if let Some(poll) = &point.poll
            && !self.polls.iter().any(|p| p.name == *poll)
        {
            let message =
                format!("point `{}` names poll group `{poll}`, which is none", point.name);
            let names: Vec<_> = self.polls.iter().map(|p| format!("`{}`", p.name)).collect();
            found.add("poll", message, format!("the device has {}", names.join(", ")));
        }
    }
}

/// Checks the point's fields against its type.
fn check_fields(point: &ModbusPoint, found: &mut Problems) {
    let value_type = point.effective_type();
    let type_name = value_type.name();
    let long = matches!(value_type, ValueType::String | ValueType::Bytes);
    let says = |field: &str| format!("point `{}` is {type_name} and has `{field}`", point.name);
    match point.length {
        None if long => {
            let message = format!("point `{}` is {type_name} without a `length`", point.name);
            found.add("length", message, "give the number of registers");
        }
        Some(0) if long => {
            let message = format!("point `{}` has a `length` of 0", point.name);
            found.add("length", message, "give the number of registers, at least 1");
        }
        Some(_) if !long => {
            found.add("length", says("length"), "only `string` and `bytes` have a length");
        }
        _ => {}
    }
    if point.byte.is_some() && !matches!(value_type, ValueType::I8 | ValueType::U8) {
        found.add("byte", says("byte"), "only `i8` and `u8` lie in half a register");
    }
    if point.string_bytes.is_some() && value_type != ValueType::String {
        found.add("string_bytes", says("string_bytes"), "only `string` has it");
    }
    if matches!(value_type, ValueType::Bool | ValueType::String | ValueType::Bytes) {
        if point.scale.is_some() {
            found.add("scale", says("scale"), "only numbers can be scaled");
        }
        if point.offset.is_some() {
            found.add("offset", says("offset"), "only numbers have an offset");
        }
    }
    if long && matches!(point.order, Some(Order::Cdab | Order::Dcba)) {
        found.add(
            "order",
            says("order"),
            "words of text are never swapped; `badc` swaps its bytes",
        );
    }
    if point.scale.is_some_and(|s| !s.is_finite() || s == 0.0) {
        let message = format!("point `{}` has a `scale` of {:?}", point.name, point.scale);
        found.add("scale", message, "a number that is not 0");
    }
    if point.offset.is_some_and(|o| !o.is_finite()) {
        let message = format!("point `{}` has an `offset` that is no number", point.name);
        found.add("offset", message, "a number");
    }
}

/// Checks the point's type against its register kind.
fn check_type(point: &ModbusPoint, found: &mut Problems) {
    let (name, kind, value_type) = (&point.name, point.register.name(), point.effective_type());
    let bits = point.register.is_bits();
    if bits && value_type != ValueType::Bool {
        let message =
            format!("point `{name}` reads a {kind}, which is one bit, as {}", value_type.name());
        found.add("type", message, "leave `type` out, or read `holding` or `input` registers");
    }
    match point.bit {
        Some(_) if bits => {
            let message = format!("point `{name}` takes a `bit` of a {kind}, which is one bit");
            found.add("bit", message, "add the bit to `address`");
        }
        Some(bit) if bit > 15 => {
            let message = format!("point `{name}` at {kind} {} takes bit {bit}", point.address);
            found.add("bit", message, "a register has bits 0 to 15; bit 16 is bit 0 of the next");
        }
        Some(_) if value_type != ValueType::Bool => {
            let message = format!("point `{name}` takes one bit as {}", value_type.name());
            found.add("type", message, "leave `type` out: a bit is a `bool`");
        }
        None if !bits && value_type == ValueType::Bool => {
            let message = format!("point `{name}` reads a whole register as bool");
            found.add("bit", message, "say which `bit`, 0 to 15");
        }
        _ => {}
    }
}

/// One thing of a link that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkProblem {
    /// The field's name in the configuration.
    pub field: &'static str,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

impl Bus {
    /// Everything that cannot work in this link's configuration.
    pub fn problems(&self) -> Vec<LinkProblem> {
        match self {
            Self::Tcp(tcp) => tcp.problems(),
            Self::Rtu(rtu) => rtu.problems(),
        }
    }
}

impl TcpBus {
    fn problems(&self) -> Vec<LinkProblem> {
        let ids = self.framing == Framing::Rtu && self.tid_check == TidCheck::Lenient;
        let mut found = wrong([
            (self.host.trim().is_empty(), "host", "is empty", "a host name or IP address"),
            (self.port == 0, "port", "is 0", "1 to 65535; Modbus devices listen on 502"),
            (ids, "tid_check", "speaks of ids, which RTU frames have not", "leave it out"),
            (
                self.connect_timeout.duration().is_zero(),
                "connect_timeout",
                "is zero",
                "such as `3s`",
            ),
        ]);
        found.extend(backoff(self.backoff_min, self.backoff_max));
        found
    }
}

impl RtuBus {
    fn problems(&self) -> Vec<LinkProblem> {
        let port = self.settings().problems();
        let mut found: Vec<_> = port
            .into_iter()
            .map(|(field, message, hint)| LinkProblem { field, message, hint })
            .collect();
        found.extend(backoff(self.backoff_min, self.backoff_max));
        found
    }
}

fn backoff(min: Span, max: Span) -> Vec<LinkProblem> {
    wrong([
        (min.duration().is_zero(), "backoff_min", "is zero", "such as `500ms`"),
        (max < min, "backoff_max", "is shorter than `backoff_min`", "at least as long"),
    ])
}

/// The problems of those fields that are wrong.
fn wrong<const N: usize>(fields: [(bool, &'static str, &str, &str); N]) -> Vec<LinkProblem> {
    fields
        .into_iter()
        .filter(|(wrong, ..)| *wrong)
        .map(|(_, field, what, hint)| LinkProblem {
            field,
            message: format!("`{field}` {what}"),
            hint: hint.to_owned(),
        })
        .collect()
}

struct Problems {
    point: Option<usize>,
    all: Vec<PointProblem>,
}

impl Problems {
    fn add(&mut self, field: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.all.push(PointProblem {
            point_index: self.point,
            field,
            message: message.into(),
            hint: hint.into(),
        });
    }
}

impl RegisterKind {
    /// The word in configuration and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coil => "coil",
            Self::Discrete => "discrete",
            Self::Holding => "holding",
            Self::Input => "input",
        }
    }
}

impl ValueType {
    /// The word in configuration and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bcd16 => "bcd16",
            Self::Bcd32 => "bcd32",
            Self::String => "string",
            Self::Bytes => "bytes",
        }
    }
}

#[cfg(test)]
#[path = "problems_tests.rs"]
mod tests;
