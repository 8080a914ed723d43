//! Numbers that flags and knobs accept.

/// From the lowest to the highest number, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

// === impl Range ===

impl Range {
    pub(crate) fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Reads the value of a flag.
    ///
    /// # Errors
    /// What is wrong, for the user.
    pub(crate) fn parse(self, text: &str) -> Result<f64, String> {
        match text.parse() {
            Ok(value) if self.contains(value) => Ok(value),
            _ => Err(format!(
                "{text:?} is not a number from {} to {}",
                self.low, self.high
            )),
        }
    }
}
