use super::*;
use crate::south::modbus::RegisterKind;
