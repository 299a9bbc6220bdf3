//! Checks of time zones: that they exist, and that they stand where a calendar is followed.

use super::{Checker, path_of};
use crate::Span;
use crate::code::Code;
use crate::path::Path;
use crate::similar::suggest;
use crate::stream::is_whole_days;

impl Checker<'_> {
    pub(super) fn timezone(&mut self) {
        if let Some(name) = &self.document.gateway.timezone {
            self.zone(name, &path_of("gateway").then("timezone"));
        }
    }

    /// Checks the `timezone` of a window of `size`, which stands at `path`.
    pub(super) fn window_zone(&mut self, size: Span, zone: Option<&str>, path: &Path) {
        let Some(name) = zone else { return };
        let path = path.then("timezone");
        if is_whole_days(size) {
            self.zone(name, &path);
        } else {
            let message = format!("windows of {size} follow no calendar");
            let hint = "leave `timezone` out, or make `size` whole days, such as `1d`";
            self.say(Code::WindowShape, &path, message, Some(hint));
        }
    }

    fn zone(&mut self, name: &str, path: &Path) {
        if name.parse::<chrono_tz::Tz>().is_ok() {
            return;
        }
        let known: Vec<&str> = chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).collect();
        let hint = suggest(name, &known);
        let hint = hint.unwrap_or_else(|| "write an IANA name, such as `Europe/Berlin`".to_owned());
        self.say(Code::BadValue, path, format!("there is no time zone `{name}`"), Some(&hint));
    }
}
