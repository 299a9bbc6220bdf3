//! A Modbus device: points in registers, read in merged blocks over a link that may be shared.

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::serial::{Parity, PortSettings};
use crate::types::{Every, Name, Span, UnitId};

/// A Modbus device.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModbusDevice {
    /// The link that the device is reached through, by name.
    pub link: Name,
    /// The unit id on that link.
    #[serde(default = "default_unit_id")]
    pub unit_id: UnitId,
    /// How often the points are read. Each group makes rows of its own: those of the first go to the
    /// device's table, those of another one to the table `<table>_<group>`.
    #[serde(default = "default_polls")]
    pub polls: Vec<Poll>,
    /// Deadline of one request, from sending to the whole reply.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
    /// Pause between a reply of this device and the next request to it; the link serves others in
    /// between. For devices that miss a request which comes too early.
    #[serde(default = "default_delay")]
    pub inter_request_delay: Span,
    /// Registers (or bits) that a merged request may read between two points and throw away.
    #[serde(default = "default_max_gap")]
    pub max_gap: u16,
    /// Registers that one request may read, at most 125.
    #[serde(default = "default_max_registers")]
    pub max_registers: u16,
    /// Bits that one request may read, at most 2,000.
    #[serde(default = "default_max_bits")]
    pub max_bits: u16,
    /// Order of the bytes of 32 and 64 bit values, unless a point says otherwise.
    #[serde(default)]
    pub order: Order,
    /// The register map.
    #[schemars(with = "Vec<ModbusPoint>")]
    pub points: RegisterMap,
}

/// A group of points that are read together.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Poll {
    /// The group's name.
    pub name: Name,
    /// Time from one cycle's start to the next one's, or `on_connect`: read once each time the
    /// connection is made, such as a serial number.
    pub every: Every,
    /// Starts the cycles at a moment within `every` that follows from the device's name, instead of
    /// at once: devices with equal times are then not all asked in the same moment.
    #[serde(default)]
    pub spread: bool,
}

/// The four address spaces of a Modbus device (Modbus Application Protocol V1.1b3, section 4.3).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RegisterKind {
    /// Coils: function code 01.
    Coil,
    /// Discrete inputs: function code 02.
    Discrete,
    /// Holding registers: function code 03.
    Holding,
    /// Input registers: function code 04.
    Input,
}

impl RegisterKind {
    /// True for the kinds whose addresses are single bits.
    pub fn is_bits(self) -> bool {
        matches!(self, Self::Coil | Self::Discrete)
    }

    /// The function code that reads this kind (Modbus Application Protocol V1.1b3, sections 6.1
    /// to 6.4).
    pub fn read_function(self) -> u8 {
        match self {
            Self::Coil => 0x01,
            Self::Discrete => 0x02,
            Self::Holding => 0x03,
            Self::Input => 0x04,
        }
    }
}

/// How the bytes of one value lie in its registers. A is the most significant byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Big-endian: the order of the specification.
    #[default]
    Abcd,
    /// Words swapped: least significant word first.
    Cdab,
    /// Bytes swapped inside each word.
    Badc,
    /// Little-endian: both swapped.
    Dcba,
}

/// Which bytes of a register hold a string's characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StringBytes {
    /// Two characters a register, high byte first.
    #[default]
    Both,
    /// One character a register, in the high byte.
    High,
    /// One character a register, in the low byte.
    Low,
}

/// How a value is written in its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// A coil, a discrete input, or with `bit` a bit of a register.
    Bool,
    /// Signed byte; `byte` says which.
    I8,
    /// Unsigned byte; `byte` says which.
    U8,
    /// Signed 16 bit.
    I16,
    /// Unsigned 16 bit.
    U16,
    /// Signed 32 bit, 2 registers.
    I32,
    /// Unsigned 32 bit, 2 registers.
    U32,
    /// Signed 64 bit, 4 registers.
    I64,
    /// Unsigned 64 bit, 4 registers.
    U64,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 single precision, 2 registers.
    F32,
    /// IEEE 754 double precision, 4 registers.
    F64,
    /// Four decimal digits in one register.
    Bcd16,
    /// Eight decimal digits in 2 registers.
    Bcd32,
    /// Text over `length` registers, cut at the first NUL, trailing spaces trimmed.
    String,
    /// Raw bytes over `length` registers.
    Bytes,
}

/// Which half of a register an 8 bit value lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ByteHalf {
    /// The most significant byte.
    High,
    /// The least significant byte.
    #[default]
    Low,
}

/// One point of a register map.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModbusPoint {
    /// The point's name, and its column's.
    pub name: Name,
    /// The address space.
    pub register: RegisterKind,
    /// 0-based protocol address: 100 for "40101".
    pub address: u16,
    /// How the value is written. Left out: `bool` for coils, discrete inputs and with `bit`, else `u16`.
    #[serde(default, rename = "type")]
    pub value_type: Option<ValueType>,
    /// Registers of a `string` or `bytes` value.
    #[serde(default)]
    pub length: Option<u16>,
    /// Takes one bit of the register, 0 being the least significant.
    #[serde(default)]
    pub bit: Option<u8>,
    /// Which half of the register an 8 bit value lies in; `low` where left out.
    #[serde(default)]
    pub byte: Option<ByteHalf>,
    /// Order of the bytes, where it differs from the device's. Only said here, not at the device,
    /// `badc` and `dcba` also swap the two bytes of 16 bit values, and `badc` those of text.
    #[serde(default)]
    pub order: Option<Order>,
    /// Which bytes of each register hold a string's characters.
    #[serde(default)]
    pub string_bytes: Option<StringBytes>,
    /// Factor from raw value to the unit; makes the column a 64 bit float.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Added after scaling; makes the column a 64 bit float.
    #[serde(default)]
    pub offset: Option<f64>,
    /// The value's unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
    /// The poll group that reads the point; the first where left out.
    #[serde(default)]
    pub poll: Option<Name>,
}

fn default_unit_id() -> UnitId {
    UnitId::new(1).unwrap_or_else(|| unreachable!("1 is a unit id"))
}

fn default_polls() -> Vec<Poll> {
    let name = "default".parse().unwrap_or_else(|_| unreachable!("a name"));
    vec![Poll { name, every: Every::Span(Span::from_secs(1)), spread: false }]
}

fn default_timeout() -> Span {
    Span::from_secs(1)
}

fn default_max_gap() -> u16 {
    8
}

fn default_max_registers() -> u16 {
    125
}

fn default_max_bits() -> u16 {
    2000
}

impl ModbusPoint {
    /// The value's type, with the default filled in.
    pub fn effective_type(&self) -> ValueType {
        let bits = matches!(self.register, RegisterKind::Coil | RegisterKind::Discrete);
        self.value_type.unwrap_or(if bits || self.bit.is_some() {
            ValueType::Bool
        } else {
            ValueType::U16
        })
    }

    /// The Arrow type of the column.
    pub fn data_type(&self) -> DataType {
        let plain = match self.effective_type() {
            ValueType::Bool => return DataType::Boolean,
            ValueType::String => return DataType::Utf8,
            ValueType::Bytes => return DataType::Binary,
            ValueType::I8 => DataType::Int8,
            ValueType::U8 => DataType::UInt8,
            ValueType::I16 => DataType::Int16,
            ValueType::U16 | ValueType::Bcd16 => DataType::UInt16,
            ValueType::I32 => DataType::Int32,
            ValueType::U32 | ValueType::Bcd32 => DataType::UInt32,
            ValueType::I64 => DataType::Int64,
            ValueType::U64 => DataType::UInt64,
            ValueType::F16 | ValueType::F32 => DataType::Float32,
            ValueType::F64 => DataType::Float64,
        };
        if self.scale.is_some() || self.offset.is_some() { DataType::Float64 } else { plain }
    }
}

impl ModbusDevice {
    /// What one request may read of `kind`: registers or bits.
    pub(crate) fn limit(&self, kind: RegisterKind) -> u16 {
        if kind.is_bits() { self.max_bits } else { self.max_registers }
    }

    /// The same device with only the poll group `index` and its points. A device with one group is
    /// its own first group.
    #[must_use]
    pub fn group(&self, index: usize) -> Self {
        let Some(poll) = self.polls.get(index) else { return self.clone() };
        let belongs = |point: &&ModbusPoint| match &point.poll {
            Some(name) => *name == poll.name,
            None => index == 0,
        };
        let points = if self.points.iter().all(|point| belongs(&point)) {
            self.points.clone()
        } else {
            self.points.iter().filter(belongs).cloned().collect()
        };
        Self { polls: vec![poll.clone()], points, ..self.clone() }
    }

    /// The columns of all poll groups.
    pub fn columns(&self) -> Vec<Point> {
        self.points.columns().to_vec()
    }
}

/// How a link reaches its devices.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Bus {
    /// A TCP connection.
    Tcp(TcpBus),
    /// A serial port: Modbus RTU.
    Rtu(RtuBus),
}

impl Bus {
    /// The word in the configuration.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Rtu(_) => "rtu",
        }
    }

    /// Pause between a reply and the next request.
    pub fn inter_request_delay(&self) -> Span {
        match self {
            Self::Tcp(tcp) => tcp.inter_request_delay,
            Self::Rtu(rtu) => rtu.inter_request_delay,
        }
    }

    /// True where units are addressed as on a serial line: 1 to 247, with 0 for all and no reply
    /// (Modbus over serial line V1.02, clause 2.2).
    pub fn is_serial_line(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.framing == Framing::Rtu,
            Self::Rtu(_) => true,
        }
    }
}

/// A serial port that Modbus RTU devices share. The gateway is the only client on the line.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RtuBus {
    /// The port's device file. `/dev/serial/by-id/...` stays the same when an adapter is plugged in
    /// again; `/dev/ttyUSB0` may not.
    pub port: String,
    /// Bits a second.
    #[serde(default = "default_baud")]
    pub baud: u32,
    /// Parity bit; the specification's default is `even`.
    #[serde(default)]
    pub parity: Parity,
    /// Stop bits, 1 or 2. Left out: 1 with parity, 2 without, as the specification wants it.
    #[serde(default)]
    pub stop_bits: Option<u8>,
    /// Whether the adapter repeats what is sent.
    #[serde(default)]
    pub echo: Echo,
    /// Pause between a reply and the next request, where a device needs more than the 3.5
    /// characters of the specification.
    #[serde(default = "default_delay")]
    pub inter_request_delay: Span,
    /// First pause before a port that is gone is opened again; doubles with jitter.
    #[serde(default = "default_port_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before a port that is gone is opened again.
    #[serde(default = "default_port_backoff_max")]
    pub backoff_max: Span,
}

impl RtuBus {
    /// How the port is set up. RTU characters have 8 data bits (Modbus over serial line V1.02,
    /// clause 2.5.1).
    pub fn settings(&self) -> PortSettings {
        let stop_bits = if self.parity == Parity::None { 2 } else { 1 };
        PortSettings {
            path: self.port.clone(),
            baud: self.baud,
            parity: self.parity,
            data_bits: 8,
            stop_bits: self.stop_bits.unwrap_or(stop_bits),
        }
    }
}

/// Whether an adapter repeats what is sent, as two-wire RS-485 adapters may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Echo {
    /// A repetition of the request is skipped where there is one.
    #[default]
    Auto,
    /// Each request is repeated: a reply without the repetition before it is an error, because the
    /// request was disturbed on the line.
    Strip,
    /// Nothing is repeated.
    None,
}

/// A Modbus TCP connection.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TcpBus {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    #[serde(default = "default_port")]
    pub port: u16,
    /// How frames are written on the connection.
    #[serde(default)]
    pub framing: Framing,
    /// Whether a reply must carry the request's transaction id.
    #[serde(default)]
    pub tid_check: TidCheck,
    /// Deadline for making the connection.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout: Span,
    /// Pause between a reply and the next request on the connection.
    #[serde(default = "default_delay")]
    pub inter_request_delay: Span,
    /// First pause before the connection is made again; doubles with jitter.
    #[serde(default = "default_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before the connection is made again.
    #[serde(default = "default_backoff_max")]
    pub backoff_max: Span,
}

/// How frames are written on a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// Modbus TCP with its MBAP header.
    #[default]
    Tcp,
    /// RTU frames with their CRC, as serial converters pass them on.
    Rtu,
}

/// Whether a reply must carry the request's transaction id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TidCheck {
    /// A reply with another id is dropped.
    #[default]
    Strict,
    /// A reply with another id is taken when unit, function and length are right: for devices that
    /// do not copy the id. After a timeout the connection is made anew, so that a late reply cannot
    /// be taken for another one.
    Lenient,
}

fn default_baud() -> u32 {
    9600
}

fn default_port_backoff_min() -> Span {
    Span::from_millis(250)
}

/// Trying a port that is not there costs next to nothing, and an adapter that is plugged in again
/// shall be read within 3 s.
fn default_port_backoff_max() -> Span {
    Span::from_secs(2)
}

fn default_port() -> u16 {
    502
}

fn default_connect_timeout() -> Span {
    Span::from_secs(3)
}

fn default_delay() -> Span {
    Span::from_millis(0)
}

fn default_backoff_min() -> Span {
    Span::from_millis(500)
}

fn default_backoff_max() -> Span {
    Span::from_secs(30)
}

mod map;
pub use map::RegisterMap;

#[cfg(feature = "io")]
pub use io::ModbusSouth;

#[cfg(feature = "io")]
mod io;
