//! Random inputs of a case: extents, operands with gaps between their rows, and its fault. Checks of its result.

use einsparse::formats::{AnySparse, Dense};
use einsparse::{Context, Error, Scalar, SparseTensor, Stream, Tensor};

use super::loops::Entries;
use super::results::Written;
use crate::support::dense::among_columns;
use crate::support::{GUARD, Rng};

/// Allowed outcome of a case without a right result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The operator returned an error that states the fault.
    Refused,
    /// No kernel of the context supports the case.
    Unsupported,
}

/// Fault of a case. Every fault must lead to an error.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A tensor of the run has one row or column more, or fewer.
    Extent,
    /// A tensor is stored in another context.
    Elsewhere,
    /// The stream belongs to another context.
    Stream,
    /// Faults specific to an operator: in its constructor, or in a run.
    Making,
    Run,
}

impl Fault {
    /// Selects one of fourteen values; half of them mean no fault.
    fn of(word: u64) -> Self {
        match word % 14 {
            7 | 8 => Fault::Extent,
            9 | 10 => Fault::Making,
            11 => Fault::Run,
            12 => Fault::Elsewhere,
            13 => Fault::Stream,
            _ => Fault::None,
        }
    }
}

/// Elements between rows, and before and after a column slice of wider rows.
const GAPS: [&[usize]; 4] = [&[0], &[0], &[0, 8, 16], &[0, 1, 3, 8]];

/// A dense operand: its values, rounded to its type, and its tensor.
pub struct Given<T> {
    pub values: Vec<f64>,
    pub there: Tensor<T>,
}

/// One case of an operator.
pub struct Trial<'c> {
    pub context: &'c Context,
    foreign: Option<&'c Context>,
    rng: Rng,
    fault: Fault,
    /// Number of tensors before the invalid one.
    until: usize,
    gaps: &'static [usize],
    /// Description of the fault, once it was applied.
    struck: Option<String>,
    /// The operator may refuse gaps between rows.
    pub whole: bool,
    has_gaps: bool,
    /// Errors so far, if refusals are compared. Results are ignored then.
    said: Option<Vec<String>>,
}

impl<'c> Trial<'c> {
    /// Creates the case of this number. `foreign`: a context other than the operator's.
    pub fn new(context: &'c Context, foreign: Option<&'c Context>, number: u64) -> Self {
        let mut rng = Rng(number);
        let fault = Fault::of(rng.word());
        let gaps = GAPS[rng.word() as usize % GAPS.len()];
        Trial {
            context,
            foreign,
            rng,
            fault,
            until: 0,
            gaps,
            struck: None,
            whole: false,
            has_gaps: false,
            said: None,
        }
    }

    /// Like [`Trial::new`], to compare errors with those of another context.
    pub fn compared(context: &'c Context, foreign: Option<&'c Context>, number: u64) -> Self {
        Trial { said: Some(Vec::new()), ..Trial::new(context, foreign, number) }
    }

    /// Returns the errors of all steps, in order; `taken` for a step without an error.
    pub fn said(self) -> Vec<String> {
        self.said.unwrap_or_default()
    }

    /// Whether operands are drawn so that a GPU supports most of them.
    pub fn is_for_gpu(&self) -> bool {
        self.said.is_some() || self.context.is_cuda()
    }

    /// Records an error for the comparison. `Some`: the step ends with this result.
    fn heard<V>(&mut self, said: &einsparse::Result<V>) -> Option<Result<(), Outcome>> {
        let all = self.said.as_mut()?;
        all.push(match said {
            Ok(_) => "taken".into(),
            Err(error) => error.to_string(),
        });
        // A step that accepts a fault ends the case.
        Some(match said {
            Ok(_) if self.struck.is_none() => Ok(()),
            _ => Err(Outcome::Refused),
        })
    }

    /// Selects which of this many tensors is invalid, if any is.
    pub fn aim(&mut self, tensors: usize) {
        self.until = self.below(tensors);
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.rng.word() >> 20) as usize % bound.max(1)
    }

    /// Returns true with probability `1 / times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn one<V: Copy>(&mut self, of: &[V]) -> V {
        of[self.below(of.len())]
    }

    /// Integer from -2 to 2.
    pub fn integer(&mut self) -> f64 {
        self.rng.integer()
    }

    /// Number of rows, near the edges of tiles.
    pub fn rows(&mut self) -> usize {
        if self.said.is_some() {
            return self.one(&[1, 2, 3, 5, 7, 8, 16, 17, 0, 33]);
        }
        self.one(&[1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 0, 127, 128, 129])
    }

    /// Number of columns. Most GPU kernels require multiples of 8 elements.
    pub fn columns(&mut self) -> usize {
        const ANY: [usize; 12] = [1, 2, 3, 5, 7, 8, 9, 16, 31, 33, 65, 0];
        const WHOLE: [usize; 8] = [8, 16, 24, 32, 64, 72, 128, 40];
        let any = match self.is_for_gpu() {
            true => self.once_in(6),
            false => !self.once_in(4),
        };
        if any { self.one(&ANY) } else { self.one(&WHOLE) }
    }

    /// Whether to create the operator with a fault. Creation must then return an error.
    pub fn is_made_wrong(&mut self, what: &str) -> bool {
        self.is_at_fault(Fault::Making, what)
    }

    /// Whether to give a run a fault specific to the operator.
    pub fn is_run_wrong(&mut self, what: &str) -> bool {
        self.is_at_fault(Fault::Run, what)
    }

    fn is_at_fault(&mut self, fault: Fault, what: &str) -> bool {
        let is = self.fault == fault && self.struck.is_none();
        if is {
            self.struck = Some(what.into());
        }
        is
    }

    /// Whether no fault was applied so far.
    pub fn is_sound(&self) -> bool {
        self.struck.is_none()
    }

    /// Whether the next tensor is the invalid one.
    fn is_next(&mut self) -> bool {
        let is = self.until == 0 && self.struck.is_none();
        self.until = self.until.wrapping_sub(1);
        is
    }

    /// Changes the extent of one of these axes.
    fn other_extent(&mut self, shape: &[usize], axes: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        let axis = self.one(axes);
        shape[axis] = match shape[axis] {
            extent if extent > 0 && self.once_in(2) => extent - 1,
            extent => extent + 1,
        };
        shape
    }

    /// Creates a tensor of these values, possibly as columns of a wider one, or an invalid tensor instead. `between`:
    /// value of the elements between rows.
    fn place<T: Scalar>(
        &mut self,
        name: &str,
        dense: &Dense<T>,
        axes: &[usize],
        between: T,
    ) -> Tensor<T> {
        let width = dense.shape().last().copied().unwrap_or(1);
        let gap = self.one(self.gaps);
        let before = self.one(self.gaps);
        let is_next = self.is_next();
        match (self.fault, self.foreign) {
            (Fault::Extent, _) if is_next && !axes.is_empty() => {
                let shape = self.other_extent(dense.shape(), axes);
                self.struck = Some(format!("{name} of {shape:?}, not {:?}", dense.shape()));
                let nan = |_: &[usize]| T::from_f64(f64::NAN);
                let other = Dense::from_fn(shape, nan).unwrap();
                self.context.upload_dense(&other).unwrap()
            }
            (Fault::Elsewhere, Some(foreign)) if is_next => {
                self.struck = Some(format!("{name} in another context"));
                foreign.upload_dense(dense).unwrap()
            }
            _ => {
                let before = if dense.shape().is_empty() { 0 } else { before };
                self.has_gaps |= before + gap > 0;
                if before > 0 {
                    return among_columns(self.context, dense, [before, gap], between);
                }
                let there = self.context.upload_strided(dense, width + gap, between);
                there.unwrap()
            }
        }
    }

    /// Creates an operand. `value` receives the number of the element.
    pub fn given<T: Scalar>(
        &mut self,
        name: &str,
        shape: &[usize],
        value: impl FnMut(&mut Self, usize) -> f64,
    ) -> Given<T> {
        let all: Vec<usize> = (0..shape.len()).collect();
        self.given_but(name, shape, &all, value)
    }

    /// Like [`Trial::given`], but only these axes can get a wrong extent.
    pub fn given_but<T: Scalar>(
        &mut self,
        name: &str,
        shape: &[usize],
        axes: &[usize],
        mut value: impl FnMut(&mut Self, usize) -> f64,
    ) -> Given<T> {
        let count: usize = shape.iter().product();
        let values: Vec<T> = (0..count).map(|i| T::from_f64(value(self, i))).collect();
        let wide = values.iter().map(|x| x.to_f64()).collect();
        let dense = Dense::new(shape.to_vec(), values).unwrap();
        // Integers have no NaN; 1 may be a valid index.
        let is_whole = T::from_f64(0.5).to_f64() != 0.5;
        let between = T::from_f64(if is_whole { 1.0 } else { f64::NAN });
        Given { values: wide, there: self.place(name, &dense, axes, between) }
    }

    /// Creates an operand of small integers.
    pub fn integers<T: Scalar>(&mut self, name: &str, shape: &[usize]) -> Given<T> {
        self.given(name, shape, |t, _| t.integer())
    }

    /// Creates an output: NaN before the run, and a guard value between the rows.
    pub fn written<T: Scalar>(&mut self, name: &str, shape: &[usize]) -> Tensor<T> {
        let nan = |_: &[usize]| T::from_f64(f64::NAN);
        let dense = Dense::from_fn(shape.to_vec(), nan).unwrap();
        let all: Vec<usize> = (0..shape.len()).collect();
        self.place(name, &dense, &all, T::from_f64(GUARD))
    }

    /// Draws nonzeros of a tensor, in order: about `share` in 64 positions, none with value zero.
    pub fn entries(&mut self, shape: &[usize], share: usize) -> Entries {
        let count: usize = shape.iter().product();
        let mut all = Vec::new();
        for at in 0..count {
            if self.below(64) < share {
                let mut left = at;
                let mut place: Vec<usize> = shape
                    .iter()
                    .rev()
                    .map(|&extent| {
                        let own = left % extent;
                        left /= extent;
                        own
                    })
                    .collect();
                place.reverse();
                all.push((place, self.one(&[1.0, -2.0, 2.0, -1.0])));
            }
        }
        all
    }

    /// Creates a sparse tensor in the operator's context, or in another one.
    pub fn sparse<T: Scalar>(&mut self, name: &str, sparse: &AnySparse<T>) -> SparseTensor<T> {
        if let (Fault::Elsewhere, Some(foreign)) = (self.fault, self.foreign)
            && self.is_next()
        {
            self.struck = Some(format!("{name} in another context"));
            return foreign.upload(sparse.map_values(|x| x)).unwrap();
        }
        self.context.upload(sparse.map_values(|x| x)).unwrap()
    }

    /// Stream of a run.
    pub fn stream(&mut self) -> Stream {
        match (self.fault, self.foreign) {
            (Fault::Stream, Some(foreign)) if self.struck.is_none() => {
                self.struck = Some("a stream of another context".into());
                foreign.stream().unwrap()
            }
            _ => self.context.stream().unwrap(),
        }
    }

    /// Returns the created object, or the outcome of the case.
    pub fn made<V>(&mut self, made: einsparse::Result<V>) -> Result<V, Outcome> {
        if let Some(heard) = self.heard(&made) {
            return heard.and(made.map_err(|_| Outcome::Refused));
        }
        let is_wrong = self.fault == Fault::Making && self.struck.is_some();
        match made {
            Ok(_) if is_wrong => panic!("is made although {:?}", self.struck),
            Ok(made) => Ok(made),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Runs into one output, on the stream of the case.
    pub fn run<W: Written, V>(
        &mut self,
        out: &mut W,
        run: impl FnOnce(&mut W, &Stream) -> einsparse::Result<V>,
    ) -> Result<V, Outcome> {
        let stream = self.stream();
        let ran = run(out, &stream);
        self.ended(&stream, ran, &[out])
    }

    /// Runs an operation whose outputs are unspecified after an error.
    pub fn queue<V>(
        &mut self,
        run: impl FnOnce(&Stream) -> einsparse::Result<V>,
    ) -> Result<V, Outcome> {
        let stream = self.stream();
        let ran = run(&stream);
        self.ended(&stream, ran, &[])
    }

    /// Waits for a run. After an error, `outputs` must be unchanged.
    pub fn ended<V>(
        &mut self,
        stream: &Stream,
        ran: einsparse::Result<V>,
        outputs: &[&dyn Written],
    ) -> Result<V, Outcome> {
        stream.synchronize().unwrap();
        self.context.synchronize().unwrap();
        if let Some(heard) = self.heard(&ran) {
            return heard.and(ran.map_err(|_| Outcome::Refused));
        }
        match ran {
            Ok(_) if self.struck.is_some() => panic!("runs although {:?}", self.struck),
            Ok(ran) => Ok(ran),
            Err(error) => {
                let untouched = outputs.iter().all(|out| out.is_untouched());
                assert!(untouched, "{error}, and an output is written");
                Err(self.failed(&error))
            }
        }
    }

    /// Outcome of an error that may end a case.
    fn failed(&self, error: &Error) -> Outcome {
        assert!(!error.to_string().is_empty());
        let is_of_the_machine = matches!(error, Error::Cuda { .. } | Error::OutOfMemory { .. });
        assert!(!is_of_the_machine, "{:?}: {error}", self.struck);
        if self.struck.is_some() {
            return Outcome::Refused;
        }
        if matches!(error, Error::NoKernel { .. }) {
            return Outcome::Unsupported;
        }
        // A GPU may refuse addresses and extents that its copies do not support.
        let has_gaps = self.whole && self.has_gaps;
        let may_refuse = self.context.is_cuda() || has_gaps;
        assert!(may_refuse, "nothing is wrong, but {error}");
        Outcome::Refused
    }

    /// State of the case, for messages.
    pub fn fault(&self) -> String {
        format!("{:?}: {:?}", self.fault, self.struck)
    }
}
