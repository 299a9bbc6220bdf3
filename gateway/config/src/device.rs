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
use tidegate_drivers::south::mqtt::MqttFeed;
use tidegate_drivers::types::Name;

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
    /// The driver and its settings.
    pub driver: DeviceDriver,
}

impl Device {
    /// Time between two polls, where the device is polled.
    pub fn every(&self) -> Option<Duration> {
        match &self.driver {
            DeviceDriver::Modbus(device) => device.polls.iter().map(|p| p.every.duration()).max(),
            DeviceDriver::Generate(device) => Some(device.every.duration()),
            DeviceDriver::Mqtt(_) => None,
        }
    }

    /// The name of the SQL table that the rows go to. A name with a hyphen needs double quotes in
    /// SQL.
    pub fn table_name(&self) -> &Name {
        self.table.as_ref().unwrap_or(&self.name)
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
}

impl DeviceDriver {
    /// The driver's name as it is written in the document.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Modbus(_) => "modbus",
            Self::Mqtt(_) => "mqtt",
            Self::Generate(_) => "generate",
        }
    }

    /// The columns that the driver fills, known from the configuration alone.
    pub fn columns(&self) -> Vec<Point> {
        match self {
            Self::Modbus(device) => device.columns(),
            Self::Mqtt(feed) => feed.columns(),
            Self::Generate(device) => device.columns(),
        }
    }

    /// True where rows are sent to us, so that they also have `received_at`.
    pub fn is_feed(&self) -> bool {
        matches!(self, Self::Mqtt(_))
    }
}
