//! Ours: what the plan takes (`auto`) and every variant that can be forced.

use crate::case::{Case, Engine, Prepared};
use crate::device::{Gpu, Result};
use crate::problems::Dtype;

/// The engine under test.
pub struct Einsparse;

/// Opens ours on the bench's stream.
pub fn open(_gpu: &Gpu, _quick: bool) -> Result<Einsparse> {
    Err("not built yet".into())
}

impl Engine for Einsparse {
    fn name(&self) -> &'static str {
        "einsparse"
    }
    fn variants(&self, _case: &Case<'_>) -> Vec<String> {
        Vec::new()
    }
    fn prepare<'a>(&'a self, _case: &Case<'a>, variant: &str) -> Result<Prepared<'a>> {
        Err(format!("no variant {variant}"))
    }
    fn best_only(&self) -> bool {
        false
    }
    fn tolerance(&self, _dtype: Dtype) -> Option<f64> {
        None
    }
}
