//! How much of the time between two polls a link's requests take.
//!
//! An estimate from the configuration alone: the requests of one cycle are planned as the driver
//! plans them, and each is counted with a stated time. It is a lower bound, so that only what
//! cannot work is refused.

use std::time::Duration;

use tidegate_drivers::modbus;
use tidegate_drivers::south::modbus::{Bus, ModbusDevice};

use super::Checker;
use crate::code::Code;
use crate::{Device, DeviceDriver, Document, Link, Name};

/// What one request over TCP takes at least: the way there and back in a local network and the
/// turnaround of a fast device. Field devices often take 5 to 50 ms.
pub const TCP_REQUEST: Duration = Duration::from_millis(2);
/// A link that is busier than this has no room for a retry.
const BUSY_FROM: f64 = 0.8;

/// The load of one link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkLoad<'a> {
    /// The link.
    pub link: &'a Link,
    /// The devices on it, with the requests of one cycle.
    pub devices: Vec<DeviceLoad<'a>>,
    /// The part of the time that requests take; above 1, they do not fit.
    pub busy: f64,
}

/// What one device asks of its link.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLoad<'a> {
    /// Index into [`Document::devices`].
    pub index: usize,
    /// The device's name.
    pub name: &'a Name,
    /// The requests of one cycle, in order.
    pub blocks: Vec<modbus::Block>,
    /// Time from one cycle's start to the next one's; zero where there is no poll group.
    pub every: Duration,
}

/// The link that a device is reached through.
pub fn link_of(device: &Device) -> Option<&Name> {
    match &device.driver {
        DeviceDriver::Modbus(device) => Some(&device.link),
        DeviceDriver::Mqtt(_) | DeviceDriver::Generate(_) => None,
    }
}

/// The load of each link of a document, in order.
pub fn loads(document: &Document) -> Vec<LinkLoad<'_>> {
    document.links.iter().map(|link| load(document, link)).collect()
}

fn load<'a>(document: &'a Document, link: &'a Link) -> LinkLoad<'a> {
    let request = match &link.bus {
        Bus::Tcp(bus) => TCP_REQUEST + bus.inter_request_delay.duration(),
    };
    let devices: Vec<_> = document
        .devices
        .iter()
        .enumerate()
        .filter_map(|(index, device)| match &device.driver {
            DeviceDriver::Modbus(modbus) if modbus.link == link.name => {
                Some(device_load(index, &device.name, modbus))
            }
            _ => None,
        })
        .collect();
    let busy = devices
        .iter()
        .filter(|d| !d.every.is_zero())
        .map(|d| request.as_secs_f64() * d.blocks.len() as f64 / d.every.as_secs_f64())
        .sum();
    LinkLoad { link, devices, busy }
}

fn device_load<'a>(index: usize, name: &'a Name, device: &ModbusDevice) -> DeviceLoad<'a> {
    let every = device.polls.first().map_or(Duration::ZERO, |poll| poll.every.duration());
    DeviceLoad { index, name, blocks: modbus::plan(device), every }
}

impl Checker<'_> {
    /// Refuses links whose requests do not fit between two polls, and warns close to that.
    pub(super) fn buses(&mut self) {
        for (index, load) in loads(self.document).into_iter().enumerate() {
            let code = match load.busy {
                busy if busy > 1.0 => Code::BusOverload,
                busy if busy > BUSY_FROM => Code::BusBusy,
                _ => continue,
            };
            let requests: usize = load.devices.iter().map(|d| d.blocks.len()).sum();
            let message = format!(
                "the {requests} requests of a cycle take {:.0} % of the time between two polls",
                load.busy * 100.0
            );
            let hint = "poll less often, raise `max_gap`, or use another link";
            // One device alone is to blame itself; else it is the link.
            let path = match load.devices.as_slice() {
                [device] => super::path_of("devices")
                    .then(device.index)
                    .join("driver.modbus.polls[0].every"),
                _ => super::path_of("links").then(index).then("name"),
            };
            self.say(code, &path, message, Some(hint));
        }
    }
}
