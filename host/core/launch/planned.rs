//! Pattern for which a plan was made.

use std::sync::{Arc, OnceLock};

use crate::worklist::Runs;

/// Row ranges and columns of the pattern.
#[derive(Debug)]
pub(crate) struct Planned {
    runs: Arc<Runs>,
    columns: Vec<u32>,
    /// Row ranges of another tensor whose pattern was compared and is equal, usually those of a mask.
    known: OnceLock<Arc<Runs>>,
}

impl Planned {
    pub(crate) fn new(runs: &Arc<Runs>, columns: &[u32]) -> Self {
        Planned { runs: Arc::clone(runs), columns: columns.to_vec(), known: OnceLock::new() }
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Whether a pattern equals this one.
    pub(crate) fn is(&self, runs: &Arc<Runs>, columns: Option<&[u32]>) -> bool {
        let known = [Some(&self.runs), self.known.get()];
        if known.iter().flatten().any(|known| Arc::ptr_eq(known, runs)) {
            return true;
        }
        let same = *self.runs == **runs && columns == Some(&*self.columns);
        if same {
            let _ = self.known.set(Arc::clone(runs));
        }
        same
    }
}
