//! Devices and links for tests, as a user writes them.

use serde_json::{Value, json};

use crate::south::modbus::{Bus, ModbusDevice, TcpBus};

/// A device on link `bus` with the given points, as a user writes it.
pub(crate) fn device(points: &[Value]) -> ModbusDevice {
    with(json!({}), points)
}

/// The same with more fields.
pub(crate) fn with(mut fields: Value, points: &[Value]) -> ModbusDevice {
    fields["link"] = json!("bus");
    let numbered: Vec<Value> = points
        .iter()
        .enumerate()
        .map(|(index, point)| {
            let mut point = point.clone();
            if point.get("name").is_none() {
                point["name"] = json!(format!("p{index}"));
            }
            point
        })
        .collect();
    fields["points"] = json!(numbered);
    serde_json::from_value(fields).unwrap()
}

/// A link's configuration with the given fields.
pub(crate) fn tcp(mut fields: Value) -> TcpBus {
    fields["host"] = json!("plc.test");
    match serde_json::from_value(json!({ "tcp": fields })).unwrap() {
        Bus::Tcp(tcp) => tcp,
        Bus::Rtu(_) => unreachable!("it was written as `tcp`"),
    }
}
