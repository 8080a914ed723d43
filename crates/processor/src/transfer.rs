//! How a prompt's ids get to the worker. Pure.

use clap::ValueEnum;

/// What `TOKEN_TRANSFER` may say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TokenTransfer {
    /// By key where they are many, else in the reply; in the reply too where the token cache fails.
    #[default]
    Auto,
    /// By key, or not at all.
    Cache,
    /// In the reply.
    Direct,
    /// Not at all.
    None,
}

/// The rule in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// As configured.
    pub mode: TokenTransfer,
    /// Of `auto`: ids that have more bytes, 4 each, go by key.
    pub threshold: u64,
}

/// The way of one prompt's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the token cache; where that fails in the reply, or not at all.
    Key { else_direct: bool },
    /// In the reply.
    Direct,
    /// Nowhere.
    Nowhere,
}

// === impl Transfer ===

impl Transfer {
    /// The way of so many ids.
    pub(crate) fn way(self, ids: usize) -> Way {
        let bytes = ids.saturating_mul(size_of::<u32>());
        let is_large = u64::try_from(bytes).unwrap_or(u64::MAX) > self.threshold;
        match self.mode {
            TokenTransfer::Auto if is_large => Way::Key { else_direct: true },
            TokenTransfer::Cache => Way::Key { else_direct: false },
            TokenTransfer::Auto | TokenTransfer::Direct => Way::Direct,
            TokenTransfer::None => Way::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(TokenTransfer::Auto, Way::Direct, Way::Key { else_direct: true })]
    #[case(TokenTransfer::Cache, Way::Key { else_direct: false }, Way::Key { else_direct: false })]
    #[case(TokenTransfer::Direct, Way::Direct, Way::Direct)]
    #[case(TokenTransfer::None, Way::Nowhere, Way::Nowhere)]
    fn the_way_is_by_mode_and_the_bytes_of_the_ids(
        #[case] mode: TokenTransfer,
        #[case] at_the_threshold: Way,
        #[case] above: Way,
    ) {
        let transfer = Transfer {
            mode,
            threshold: 64 << 10,
        };
        assert_eq!(transfer.way(16_384), at_the_threshold);
        assert_eq!(transfer.way(16_385), above);
    }
}
