//! The members that a request may go to, as scorers, filters and pickers see them.

use crate::{slot::Slot, table::Table};

/// Some members of a table, and what is known of this request at each of them.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    table: &'a Table,
    /// Indexes into the table, ordered, each once.
    members: Vec<u32>,
    /// By member of the table: blocks of the prompt that it has cached. Empty: nobody looked.
    matched: &'a [u32],
}

// === impl Candidates ===

impl<'a> Candidates<'a> {
    pub(crate) fn new(table: &'a Table, members: Vec<u32>, matched: &'a [u32]) -> Self {
        Self {
            table,
            members,
            matched,
        }
    }

    /// What is known of all members.
    pub fn table(&self) -> &'a Table {
        self.table
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Indexes into the table.
    pub fn members(&self) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        self.members
            .iter()
            .map(|member| usize::try_from(*member).unwrap_or(usize::MAX))
    }

    /// The values of a column, in the order of the candidates.
    pub fn of<T: Copy + Default>(
        &self,
        column: &'a [T],
    ) -> impl ExactSizeIterator<Item = T> + Clone + '_ {
        self.members()
            .map(|member| column.get(member).copied().unwrap_or_default())
    }

    /// Blocks of the prompt that each has cached; zeros where nobody looked.
    pub fn matched(&self) -> impl ExactSizeIterator<Item = u32> + Clone + '_ {
        self.of(self.matched)
    }

    /// Their places in tables of others.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + Clone + '_ {
        self.of(&self.table.roster().slots)
    }

    /// The indexes alone.
    pub(crate) fn into_members(self) -> Vec<u32> {
        self.members
    }

    /// Keeps those for which `keep` says so, by their index into the table.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        self.members
            .retain(|member| keep(usize::try_from(*member).unwrap_or(usize::MAX)));
    }

    /// As [`Self::retain`], unless none would be left: then all stay.
    pub(crate) fn prefer(&mut self, mut keep: impl FnMut(usize) -> bool) {
        if self.members().any(&mut keep) {
            self.retain(keep);
        }
    }
}
