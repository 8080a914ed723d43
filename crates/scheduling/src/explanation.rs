//! How a choice came about, by the code that made it.

use smallvec::{SmallVec, smallvec};

use crate::candidates::Candidates;

/// What became of each member of a table in one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation(Vec<Verdict>);

/// What became of one member.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It was no candidate.
    Excluded(Exclusion),
    /// It was.
    Scored(Scores),
}

/// Why a member was no candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// The proxy does not allow it.
    Subset,
    /// It has not the labels that the request asks for.
    Labels,
    /// Several scrapes in a row got no answer from it, and others are left.
    Suspect,
    /// The filter at this place of the profile took it away.
    Filter(usize),
}

/// The scores of one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// By scorer of the profile, 0 to 1, without its weight.
    pub each: SmallVec<[f64; 4]>,
    /// The sum of the weighted ones.
    pub sum: f64,
}

// === impl Explanation ===

impl Explanation {
    /// By member of the table; empty, if there was no choice.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.0
    }

    /// Begins with a table of so many members.
    pub(crate) fn begin(&mut self, members: usize) {
        self.0.clear();
        self.0.resize(members, Verdict::Excluded(Exclusion::Subset));
    }

    /// The candidates got so far; one that goes no further is excluded by `next`.
    pub(crate) fn reached(&mut self, candidates: &Candidates<'_>, next: Exclusion) {
        for member in candidates.members() {
            self.set(member, Verdict::Excluded(next));
        }
    }

    /// All steps before the scores are done, of which there will be so many.
    pub(crate) fn passed(&mut self, candidates: &Candidates<'_>, scorers: usize) {
        for member in candidates.members() {
            let each = smallvec![0.0; scorers];
            self.set(member, Verdict::Scored(Scores { each, sum: 0.0 }));
        }
    }

    /// The candidates' scores by the scorer at this place of the profile.
    pub(crate) fn scored(&mut self, place: usize, candidates: &Candidates<'_>, scores: &[f64]) {
        for (member, score) in candidates.members().zip(scores) {
            if let Some(Verdict::Scored(scores)) = self.0.get_mut(member)
                && let Some(at) = scores.each.get_mut(place)
            {
                *at = *score;
            }
        }
    }

    /// The candidates' sums.
    pub(crate) fn summed(&mut self, candidates: &Candidates<'_>, sums: &[f64]) {
        for (member, sum) in candidates.members().zip(sums) {
            if let Some(Verdict::Scored(scores)) = self.0.get_mut(member) {
                scores.sum = *sum;
            }
        }
    }

    fn set(&mut self, member: usize, verdict: Verdict) {
        if let Some(place) = self.0.get_mut(member) {
            *place = verdict;
        }
    }
}
