//! Checks of devices: their links, their drivers' own rules, their columns.

use std::collections::BTreeSet;

use super::{Checker, bus, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::{Device, DeviceDriver, RESERVED_COLUMNS};

/// What a driver refuses: the field below the driver's own path, what is wrong, what is right.
pub(super) struct Refused {
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

/// What the driver of a device refuses: the one place where southbound drivers are asked.
fn refused(driver: &DeviceDriver) -> Vec<Refused> {
    match driver {
        DeviceDriver::Modbus(device) => device
            .problems()
            .into_iter()
            .map(|p| Refused {
                field: match p.point_index {
                    Some(index) => format!("points[{index}].{}", p.field),
                    None => p.field.to_owned(),
                },
                message: p.message,
                hint: Some(p.hint),
            })
            .collect(),
        DeviceDriver::Mqtt(feed) => feed
            .problems()
            .into_iter()
            .map(|(field, message, hint)| Refused {
                field: field.to_owned(),
                message,
                hint: Some(hint),
            })
            .collect(),
        DeviceDriver::Generate(device) => device
            .problems()
            .into_iter()
            .map(|(field, message, hint)| Refused { field, message, hint })
            .collect(),
        DeviceDriver::Serial(device) => with_hints(device.problems()),
        DeviceDriver::Replay(device) => with_hints(device.problems()),
    }
}

fn with_hints(problems: Vec<(String, String, String)>) -> Vec<Refused> {
    problems
        .into_iter()
        .map(|(field, message, hint)| Refused { field, message, hint: Some(hint) })
        .collect()
}

impl<'a> Checker<'a> {
    pub(super) fn devices(&mut self) {
        for (index, device) in self.document.devices.iter().enumerate() {
            let path = path_of("devices").then(index);
            let driver = path.then("driver").then(device.driver.kind());
            if let Some(link) = bus::link_of(device) {
                self.refers("link", "links", link, &driver.then("link"));
            }
            if self.is_damaged("devices", &device.name) {
                continue;
            }
            if device.history.is_some_and(|history| history.duration().is_zero()) {
                let message = "a history of 0s is none";
                let hint = "leave it out, or write a time such as `10m`";
                self.say(Code::SpanRange, &path.then("history"), message, Some(hint));
            }
            self.unit(device, &driver);
            let names_wrong = self.columns(device, &driver);
            for Refused { field, message, hint } in refused(&device.driver) {
                // Some drivers look at names too, with less of a place.
                if names_wrong && (field == "points" || field.ends_with("].name")) {
                    continue;
                }
                let path = driver.join(&field);
                let code = if field == "polls" { Code::PollGroups } else { Code::DriverSetting };
                self.say(code, &path, message, hint.as_deref());
            }
        }
        self.shared_tables();
    }

    /// On a serial line, 0 speaks to all units and is never answered.
    fn unit(&mut self, device: &Device, driver: &Path) {
        let DeviceDriver::Modbus(modbus) = &device.driver else {
            return;
        };
        let link = self.document.links.iter().find(|link| link.name == modbus.link);
        let unit = modbus.unit_id;
        if link.is_some_and(|link| link.bus.is_serial_line()) && !(1..=247).contains(&unit.get()) {
            let message = format!("no unit on a serial line answers to {unit}");
            let hint = "units have the numbers 1 to 247";
            self.say(Code::DriverSetting, &driver.then("unit_id"), message, Some(hint));
        }
    }

    /// No point is called like a column that the table has already. True where one is.
    fn columns(&mut self, device: &'a Device, driver: &Path) -> bool {
        let before = self.problems.len();
        let columns = device.driver.columns();
        let mut taken: BTreeSet<String> = RESERVED_COLUMNS.map(str::to_owned).into();
        taken.extend(columns.iter().filter(|c| c.metadata).map(|c| c.name.clone()));
        if device.point_quality {
            for point in columns.iter().filter(|c| !c.metadata) {
                taken.insert(format!("{}_quality", point.name));
                taken.insert(format!("{}_reason", point.name));
            }
        }
        let mut seen = BTreeSet::new();
        for (index, point) in columns.iter().filter(|c| !c.metadata).enumerate() {
            let path = driver.then("points").then(index).then("name");
            if taken.contains(&point.name) {
                let message = format!("the table has a column `{}` already", point.name);
                let hint = "call the point otherwise";
                self.say(Code::ReservedColumn, &path, message, Some(hint));
            } else if !seen.insert(&point.name) {
                let message = format!("the point `{}` stands twice", point.name);
                let hint = "give each point its own name";
                self.say(Code::ColumnTwice, &path, message, Some(hint));
            }
        }
        let wrong = self.problems.len() > before;
        if wrong {
            for group in 0..device.driver.groups().len() {
                self.unsound.insert(device.table_of(group));
            }
        }
        wrong
    }

    /// Devices of one table have equal columns.
    fn shared_tables(&mut self) {
        for table in self.tables.clone() {
            let [first, others @ ..] = table.devices.as_slice() else {
                continue;
            };
            let first = &self.document.devices[*first];
            for (at, index) in (1..).zip(others) {
                let device = &self.document.devices[*index];
                let damaged = [first, device].iter().any(|d| self.is_damaged("devices", &d.name));
                let (a, b) = (first.schema_of(table.groups[0]), device.schema_of(table.groups[at]));
                if damaged || a == b {
                    continue;
                }
                let differs = a.fields().iter().zip(b.fields()).find(|(a, b)| a != b);
                let hint = match differs {
                    Some((a, b)) => format!(
                        "`{}` has `{}` ({}) where `{}` has `{}` ({})",
                        device.name,
                        b.name(),
                        b.data_type(),
                        first.name,
                        a.name(),
                        a.data_type()
                    ),
                    None => format!(
                        "`{}` has {} columns, `{}` has {}",
                        device.name,
                        b.fields().len(),
                        first.name,
                        a.fields().len()
                    ),
                };
                let message = format!(
                    "`{}` and `{}` share the table `{}`, but their columns differ",
                    first.name, device.name, table.name
                );
                let field = if device.table.is_some() { "table" } else { "name" };
                let path = path_of("devices").then(*index).then(field);
                self.say(Code::TableColumns, &path, message, Some(&hint));
            }
        }
    }
}
