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
/// What a device on a serial line takes at least between a request and its reply, beside the 3.5
/// characters of silence.
const TURNAROUND: Duration = Duration::from_millis(1);
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

/// What one poll group of a device asks of its link.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLoad<'a> {
    /// Index into [`Document::devices`].
    pub index: usize,
    /// The device's name.
    pub name: &'a Name,
    /// Which of its poll groups.
    pub group: usize,
    /// The requests of one cycle, in order.
    pub blocks: Vec<modbus::Block>,
    /// Time from one cycle's start to the next one's; zero where points are read once.
    pub every: Duration,
}

/// The link that a device is reached through.
pub fn link_of(device: &Device) -> Option<&Name> {
    match &device.driver {
        DeviceDriver::Modbus(device) => Some(&device.link),
        DeviceDriver::Mqtt(_)
        | DeviceDriver::Generate(_)
        | DeviceDriver::Serial(_)
        | DeviceDriver::Replay(_) => None,
    }
}

/// The load of each link of a document, in order.
pub fn loads(document: &Document) -> Vec<LinkLoad<'_>> {
    document.links.iter().map(|link| load(document, link)).collect()
}

/// What one request takes at least: on a serial line by its characters.
pub fn request_time(bus: &Bus, block: &modbus::Block) -> Duration {
    let wire = match bus {
        Bus::Tcp(_) => TCP_REQUEST,
        Bus::Rtu(rtu) => {
            // Request, reply, and twice 3.5 characters of silence.
            let port = rtu.settings();
            port.characters(8 + 7) + port.characters(reply_characters(block)) + TURNAROUND
        }
    };
    wire + bus.inter_request_delay().duration()
}

/// Characters of a reply: unit, function, byte count, data, CRC (specification, section 6).
fn reply_characters(block: &modbus::Block) -> u32 {
    let quantity = u32::from(block.quantity);
    5 + if block.kind.is_bits() { quantity.div_ceil(8) } else { 2 * quantity }
}

fn load<'a>(document: &'a Document, link: &'a Link) -> LinkLoad<'a> {
    let devices: Vec<_> = document
        .devices
        .iter()
        .enumerate()
        .filter_map(|(index, device)| match &device.driver {
            DeviceDriver::Modbus(modbus) if modbus.link == link.name => {
                let groups = 0..modbus.polls.len();
                Some(groups.map(move |g| device_load(index, &device.name, modbus, g)))
            }
            _ => None,
        })
        .flatten()
        .collect();
    let cycle = |d: &DeviceLoad| -> Duration {
        d.blocks.iter().map(|block| request_time(&link.bus, block)).sum()
    };
    let busy = devices
        .iter()
        .filter(|d| !d.every.is_zero())
        .map(|d| cycle(d).as_secs_f64() / d.every.as_secs_f64())
        .sum();
    LinkLoad { link, devices, busy }
}

fn device_load<'a>(
    index: usize,
    name: &'a Name,
    device: &ModbusDevice,
    group: usize,
) -> DeviceLoad<'a> {
    let every = device.polls.get(group).and_then(|poll| poll.every.period());
    let blocks = modbus::plan(&device.group(group));
    DeviceLoad { index, name, group, blocks, every: every.unwrap_or_default() }
}

impl Checker<'_> {
    /// Refuses links whose requests do not fit between two polls, and warns close to that.
    pub(super) fn buses(&mut self) {
        for (index, link) in self.document.links.iter().enumerate() {
            if self.is_damaged("links", &link.name) {
                continue;
            }
            let path = super::path_of("links").then(index).then("bus").then(link.bus.kind());
            for problem in link.bus.problems() {
                let path = path.then(problem.field);
                self.say(Code::DriverSetting, &path, problem.message, Some(&problem.hint));
            }
        }
        for (index, load) in loads(self.document).into_iter().enumerate() {
            self.replies_in_time(&load);
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
                    .join(&format!("driver.modbus.polls[{}].every", device.group)),
                _ => super::path_of("links").then(index).then("name"),
            };
            self.say(code, &path, message, Some(hint));
        }
    }

    /// Refuses timeouts that end before the longest reply has come through its port.
    fn replies_in_time(&mut self, load: &LinkLoad<'_>) {
        let Bus::Rtu(rtu) = &load.link.bus else { return };
        for device in &load.devices {
            let DeviceDriver::Modbus(modbus) = &self.document.devices[device.index].driver else {
                continue;
            };
            let longest = device.blocks.iter().map(reply_characters).max().unwrap_or(0);
            let takes = rtu.settings().characters(longest);
            if takes >= modbus.timeout.duration() && device.group == 0 {
                let path = super::path_of("devices").then(device.index);
                let message = format!(
                    "a reply of {longest} bytes takes {} ms at {} bits a second, longer than the \
                     timeout of {}",
                    takes.as_millis(),
                    rtu.baud,
                    modbus.timeout
                );
                let hint = "a longer `timeout`, or a lower `max_registers`";
                let path = path.join("driver.modbus.timeout");
                self.say(Code::DriverSetting, &path, message, Some(hint));
            }
        }
    }
}
