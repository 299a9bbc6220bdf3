//! Devices, feeds and the links that devices share.
//!
//! The registry of southbound drivers is [`DeviceDriver`]: a driver is one variant here, one file
//! in `tidegate-drivers`, and one example in `board-configs/examples`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_drivers::Point;
use tidegate_drivers::south::generate::Generate;
use tidegate_drivers::south::modbus::{Bus, ModbusDevice};
use tidegate_drivers::south::mqtt::{Decode, MqttFeed};
use tidegate_drivers::south::replay::Replay;
use tidegate_drivers::south::serial::SerialDevice;
use tidegate_drivers::types::{Name, Span};

/// A bus or a connection with one owner; many devices may share it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The link's name, which devices refer to.
    pub name: Name,
    /// How the link reaches its devices.
    pub bus: Bus,
}

/// A device that is polled, or a feed that is listened to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The device's name: the `device` column, and the table's name where `table` is left out.
    pub name: Name,
    /// The SQL table that the rows go to; devices with equal columns may share one.
    #[serde(default)]
    pub table: Option<Name>,
    /// Adds the columns `<point>_quality` and `<point>_reason` for each point.
    #[serde(default)]
    pub point_quality: bool,
    /// How long the store keeps rows after all streams have passed them, to look at or to export;
    /// left out, not at all. The longest of the devices that share a table counts.
    #[serde(default)]
    pub history: Option<Span>,
    /// The driver and its settings.
    pub driver: DeviceDriver,
}

impl Device {
    /// Time between two polls of a group, where the device is polled.
    pub fn every(&self, group: usize) -> Option<Duration> {
        match &self.driver {
            DeviceDriver::Modbus(device) => device.polls.get(group).and_then(|p| p.every.period()),
            DeviceDriver::Generate(device) => Some(device.every.duration()),
            DeviceDriver::Mqtt(_) | DeviceDriver::Serial(_) | DeviceDriver::Replay(_) => None,
        }
    }

    /// The name of the SQL table that the rows go to, or those of the first poll group. A name with
    /// a hyphen needs double quotes in SQL.
    pub fn table_name(&self) -> &Name {
        self.table.as_ref().unwrap_or(&self.name)
    }

    /// The name of the SQL table that the rows of a poll group go to.
    pub fn table_of(&self, group: usize) -> String {
        match self.driver.groups().get(group) {
            Some(Some(name)) if group > 0 => format!("{}_{name}", self.table_name()),
            _ => self.table_name().to_string(),
        }
    }

    /// The name of the part that reads a poll group, for people.
    pub fn part_name(&self, group: usize) -> String {
        match self.driver.groups().get(group) {
            Some(Some(name)) if group > 0 => format!("{}/{name}", self.name),
            _ => self.name.to_string(),
        }
    }
}

/// The southbound drivers.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeviceDriver {
    /// A Modbus device: registers and coils, read in merged blocks over a link.
    Modbus(ModbusDevice),
    /// A feed of JSON messages from an MQTT broker.
    Mqtt(MqttFeed),
    /// Made-up rows, for trying out SQL and for measuring.
    Generate(Generate),
    /// A device on a serial port of its own that sends lines of text.
    Serial(SerialDevice),
    /// A recording that is read as if it were a device.
    Replay(Replay),
}

impl DeviceDriver {
    /// The driver's name as it is written in the document.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Modbus(_) => "modbus",
            Self::Mqtt(_) => "mqtt",
            Self::Generate(_) => "generate",
            Self::Serial(_) => "serial",
            Self::Replay(_) => "replay",
        }
    }

    /// The columns that the driver fills, known from the configuration alone; those of all poll
    /// groups.
    pub fn columns(&self) -> Vec<Point> {
        match self {
            Self::Modbus(device) => device.columns(),
            Self::Mqtt(feed) => feed.columns(),
            Self::Generate(device) => device.columns(),
            Self::Serial(device) => device.columns(),
            Self::Replay(device) => device.columns(),
        }
    }

    /// The columns of one poll group; of all that are not polled in groups, the first is all.
    pub fn columns_of(&self, group: usize) -> Vec<Point> {
        match self {
            Self::Modbus(device) => device.group(group).columns(),
            _ => self.columns(),
        }
    }

    /// The names of the poll groups; one without a name where the driver has no groups.
    pub fn groups(&self) -> Vec<Option<&Name>> {
        match self {
            Self::Modbus(device) if !device.polls.is_empty() => {
                device.polls.iter().map(|poll| Some(&poll.name)).collect()
            }
            _ => vec![None],
        }
    }

    /// True where rows are sent to us, so that they also have `received_at`.
    pub fn is_feed(&self) -> bool {
        matches!(self, Self::Mqtt(_))
    }

    /// The field in which rows say their own time, where they do.
    pub fn time_field(&self) -> Option<&str> {
        match self {
            Self::Mqtt(MqttFeed { decode: Decode::Json(json), .. }) => json.time.as_deref(),
            Self::Replay(replay) => (!replay.restamp).then_some(replay.time.as_str()),
            Self::Modbus(_) | Self::Generate(_) | Self::Serial(_) => None,
        }
    }
}
