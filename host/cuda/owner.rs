//! Memory that another library owns.

use std::any::Any;
use std::fmt;

/// Keeps memory of another library alive. The memory is released when this value is dropped.
pub struct Owner {
    held: Box<dyn Any + Send + Sync>,
}

impl Owner {
    /// Takes the value that owns the memory.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Owner { held: Box::new(held) }
    }

    /// Returns the value that owns the memory if it is of type `T`.
    pub fn into_held<T: 'static>(self) -> Option<T> {
        self.held.downcast().ok().map(|held| *held)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}
