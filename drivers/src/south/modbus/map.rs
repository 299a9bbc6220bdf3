//! A register map, held once for all that use it.
//!
//! A map stands in the configuration, in what is compared when the configuration changes, and in
//! the device that is read; plants have many devices of one make. A clone is another handle to the
//! same map. Knows no addresses and no types: those are the points' own.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ModbusPoint;
use crate::point::Point;

/// Maps that a new one is compared with at most.
const COMPARED_MAX: usize = 64;

struct Map {
    points: Box<[ModbusPoint]>,
    columns: OnceLock<Arc<[Point]>>,
}

/// The points of a device, shared by all that have the same. Reads like a slice of points.
#[derive(Clone)]
pub struct RegisterMap(Arc<Map>);

impl RegisterMap {
    /// The column of each point, made once for all handles.
    pub fn columns(&self) -> Arc<[Point]> {
        let column = |p: &ModbusPoint| Point {
            unit: p.unit.clone(),
            ..Point::new(p.name.as_str(), p.data_type())
        };
        Arc::clone(self.0.columns.get_or_init(|| self.iter().map(column).collect()))
    }

    /// Takes the place of an equal map among `known`, or becomes known. Of many different maps
    /// only the first are known.
    pub fn share(&mut self, known: &mut Vec<Self>) {
        match known.iter().find(|map| *map == self) {
            Some(map) => *self = map.clone(),
            None if known.len() < COMPARED_MAX => known.push(self.clone()),
            None => {}
        }
    }

    /// True where both are handles to one map, which two equal maps need not be.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for RegisterMap {
    type Target = [ModbusPoint];

    fn deref(&self) -> &[ModbusPoint] {
        &self.0.points
    }
}

impl FromIterator<ModbusPoint> for RegisterMap {
    fn from_iter<I: IntoIterator<Item = ModbusPoint>>(points: I) -> Self {
        let points = points.into_iter().collect();
        Self(Arc::new(Map { points, columns: OnceLock::new() }))
    }
}

impl PartialEq for RegisterMap {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || **self == **other
    }
}

impl fmt::Debug for RegisterMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'de> Deserialize<'de> for RegisterMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from_iter)
    }
}

impl Serialize for RegisterMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::south::modbus::ModbusDevice;

    fn device(first: &str) -> ModbusDevice {
        serde_json::from_value(serde_json::json!({
            "link": "l",
            "polls": [{ "name": "fast", "every": "1s" }, { "name": "slow", "every": "1m" }],
            "points": [
                { "name": first, "register": "holding", "address": 0, "type": "f32" },
                { "name": "b", "register": "coil", "address": 7 },
            ]
        }))
        .unwrap()
    }

    #[test]
    fn equal_maps_become_one_and_others_stay() {
        let mut known = Vec::new();
        let mut maps = [device("a"), device("a"), device("c")].map(|d| d.points);
        assert!(!maps[0].is_same(&maps[1]));
        for map in &mut maps {
            map.share(&mut known);
        }
        assert!(maps[0].is_same(&maps[1]));
        assert!(!maps[0].is_same(&maps[2]));
        assert!(Arc::ptr_eq(&maps[0].columns(), &maps[1].columns()));
        assert_eq!((maps[2][0].name.as_str(), known.len()), ("c", 2));
    }

    #[test]
    fn a_group_of_all_points_is_the_same_map_and_one_of_some_is_not() {
        let device = device("a");
        assert!(device.group(0).points.is_same(&device.points));
        assert!(device.group(1).points.is_empty());
    }

    #[test]
    fn a_map_is_written_as_it_was_read() {
        let device = device("a");
        let written = serde_json::to_value(&device).unwrap();
        assert_eq!(written["points"][1]["name"], "b");
        assert_eq!(serde_json::from_value::<ModbusDevice>(written).unwrap(), device);
    }
}
