//! Convolutions of a U-Net: inputs and outputs of each, and offsets of its parameters.

use std::ops::Range;

use einsparse::Result;
use einsparse::formats::{Dense, Element, generate};

pub const LEVELS: usize = 4;
/// Channels of the input: four, padded to a row that kernels read.
pub const INPUTS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Same,
    Down,
    Up,
    Each,
}

/// Columns of a buffer.
#[derive(Clone, Debug)]
pub struct Place {
    pub buffer: usize,
    pub columns: Range<usize>,
}

/// One convolution: its walk, its level (the finer one of two), its input and output.
#[derive(Clone, Debug)]
pub struct Wire {
    pub walk: Walk,
    pub level: usize,
    pub from: Place,
    pub to: Place,
    pub relu: bool,
    /// Offsets of its weights and of its bias.
    pub weights: usize,
    pub bias: usize,
    /// Whether both the next level and the skip connection read its output.
    pub is_skip: bool,
}

impl Wire {
    pub fn channels(&self) -> [usize; 2] {
        [self.from.columns.len(), self.to.columns.len()]
    }

    pub fn volume(&self) -> usize {
        match self.walk {
            Walk::Same => 27,
            Walk::Down | Walk::Up => 8,
            Walk::Each => 1,
        }
    }

    pub fn shape(&self) -> [usize; 3] {
        let [c, m] = self.channels();
        [self.volume(), c, m]
    }
}

/// Level and channels of each buffer, and the convolutions in order.
#[derive(Default)]
pub struct Wiring {
    pub buffers: Vec<(usize, usize)>,
    pub wires: Vec<Wire>,
    pub parameters: usize,
}

impl Wiring {
    pub fn new(widths: [usize; LEVELS], classes: usize) -> Self {
        let mut all = Wiring::default();
        let mut at = all.buffer(0, INPUTS);
        let mut skips = Vec::new();
        for (level, &width) in widths.iter().enumerate() {
            at = match level.checked_sub(1) {
                None => all.wire(Walk::Same, 0, at, width),
                Some(finer) => {
                    let to = all.buffer(level, width);
                    all.wire_to((Walk::Down, finer), at, to, false)
                }
            };
            at = all.wire(Walk::Same, level, at, width);
            if level + 1 == LEVELS {
                at = all.wire(Walk::Same, level, at, width);
                continue;
            }
            let both = all.buffer(level, 2 * width);
            let part = |columns| Place { columns, ..both.clone() };
            at = all.wire_to((Walk::Same, level), at, part(0..width), true);
            skips.push((both.clone(), part(width..2 * width)));
        }
        for (level, (both, part)) in skips.into_iter().enumerate().rev() {
            all.wire_to((Walk::Up, level), at, part, false);
            at = all.wire(Walk::Same, level, both, widths[level]);
            at = all.wire(Walk::Same, level, at, widths[level]);
        }
        let logits = all.wire(Walk::Each, 0, at, classes);
        debug_assert_eq!(logits.buffer + 1, all.buffers.len());
        all
    }

    fn buffer(&mut self, level: usize, channels: usize) -> Place {
        self.buffers.push((level, channels));
        Place { buffer: self.buffers.len() - 1, columns: 0..channels }
    }

    fn wire(&mut self, walk: Walk, level: usize, from: Place, channels: usize) -> Place {
        let to = self.buffer(level, channels);
        self.wire_to((walk, level), from, to, false)
    }

    fn wire_to(&mut self, at: (Walk, usize), from: Place, to: Place, is_skip: bool) -> Place {
        let mut wire = Wire {
            walk: at.0,
            level: at.1,
            from,
            to: to.clone(),
            relu: at.0 != Walk::Each,
            weights: self.parameters,
            bias: 0,
            is_skip,
        };
        // Offsets are multiples of 16 bytes.
        wire.bias = (wire.weights + wire.shape().iter().product::<usize>()).next_multiple_of(8);
        self.parameters = (wire.bias + to.columns.len()).next_multiple_of(8);
        self.wires.push(wire);
        to
    }

    /// Initial parameters as in He et al. (arXiv 1502.01852), for about as many inputs as neighbours; biases are zero.
    pub fn start<T: Element>(&self) -> Result<Dense<T>> {
        let mut all = vec![T::ZERO; self.parameters];
        for (at, wire) in self.wires.iter().enumerate() {
            // Logits begin near zero.
            let (neighbours, share) = match wire.walk {
                Walk::Same => (10.0, 1.0),
                Walk::Down => (4.0, 1.0),
                Walk::Up => (1.0, 1.0),
                Walk::Each => (1.0, 0.1),
            };
            let size = share * (2.0f64 / (neighbours * wire.channels()[0] as f64)).sqrt();
            let own = &mut all[wire.weights..][..wire.shape().iter().product()];
            let drawn = generate::random_values::<f32>(own.len(), at as u64);
            let each = own.iter_mut().zip(drawn);
            each.for_each(|(to, x)| *to = T::from_f64(f64::from(x) * size));
        }
        Ok(Dense::new([all.len()], all)?)
    }
}
