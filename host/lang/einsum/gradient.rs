//! Gradients of Einsums. The gradient of an Einsum by one of its operands is again an Einsum, or a few of them.

use std::collections::BTreeSet;
use std::fmt;

use super::{Access, Activation, Einsum, Epilogue, IndexExpr, Mode, Scalar};
use crate::error::{Error, Result};
use crate::indirect::rewrite::fresh;

/// Gradient of an Einsum by one operand: expressions that run in order, from [`Einsum::gradient`].
///
/// `dX` is the gradient of `X`. The first operand is `dC`, the gradient of the output `C`.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// let e = Einsum::parse("C[m,n] = relu(A[m,k] * B[k,n])")?;
/// let gradient = e.gradient("B")?;
/// assert_eq!(gradient.to_string(), "dC'[m,n] = relu_grad(dC[m,n], C[m,n]); dB[k,n] = A[m,k] * dC'[m,n]");
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The operand.
    pub operand: String,
    /// Name of the gradient of the output. The expressions read it.
    pub seed: String,
    /// The first step, if the output has an activation or a gate. It does not depend on the operand.
    pub sums: Option<SumsGradient>,
    /// One expression for each occurrence of the operand. All write [`output`](Gradient::output): the first with `=`,
    /// the others with `+=`.
    pub terms: Vec<Einsum>,
    /// Operands of the expressions that contain only ones, each with its only index. They repeat the gradient along an
    /// index that the expression sums and that no other operand has: `dA[m,k] = dC[m] * ones_k[k]`.
    pub ones: Vec<Ones>,
}

/// Gradient of the sums before an activation: `dC'[m,n] = relu_grad(dC[m,n], C[m,n])`.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// let gradient = Einsum::parse("C[m,n] = gelu(A[m,k] * B[k,n])")?.gradient("A")?;
/// let sums = gradient.sums.as_ref().map(|sums| sums.to_string());
/// assert_eq!(sums.as_deref(), Some("dC'[m,n] = gelu_grad(dC[m,n], C'[m,n])"));
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumsGradient {
    /// The gradient of the sums.
    pub out: Access,
    /// The gradient of the output.
    pub seed: Access,
    /// Tensor that determines the slope: the output of a ReLU, the gate of `relu_grad`, or the sums.
    pub gate: Access,
    /// [`Activation::Relu`] also for `relu_grad`; or [`Activation::Gelu`].
    pub activation: Activation,
}

impl SumsGradient {
    /// The gradient of a ReLU as an expression. `None` for GELU, whose slope is not part of the language.
    pub fn einsum(&self) -> Option<Einsum> {
        let epilogue = Epilogue { gate: Some(self.gate.clone()), ..Epilogue::default() };
        (self.activation != Activation::Gelu).then(|| Einsum {
            out: self.out.clone(),
            mode: Mode::Assign,
            scalars: Vec::new(),
            factors: vec![self.seed.clone()],
            epilogue,
            text: self.to_string(),
        })
    }
}

impl fmt::Display for SumsGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.activation.name().unwrap_or("relu");
        write!(f, "{} = {name}_grad({}, {})", self.out, self.seed, self.gate)
    }
}

/// A vector of ones.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// let gradient = Einsum::parse("C[m] = A[m,k]")?.gradient("A")?;
/// assert_eq!(gradient.to_string(), "dA[m,k] = dC[m] * ones_k[k]");
/// assert_eq!((&gradient.ones[0].name[..], &gradient.ones[0].index[..]), ("ones_k", "k"));
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ones {
    /// Name of the operand.
    pub name: String,
    /// Index of its axis. It has the same extent as in the expression that is differentiated.
    pub index: String,
}

impl Gradient {
    /// Name of the result: `dB` for the operand `B`.
    pub fn output(&self) -> &str {
        self.terms.first().map_or("", |term| &term.out.tensor)
    }

    /// The expressions in the order in which they run, without the gradient of a GELU.
    pub fn steps(&self) -> impl Iterator<Item = Einsum> {
        let sums = self.sums.iter().filter_map(SumsGradient::einsum);
        sums.chain(self.terms.iter().cloned())
    }
}

impl fmt::Display for Gradient {
    /// The steps, separated by semicolons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some(sums) = &self.sums {
            write!(f, "{sums}")?;
            between = "; ";
        }
        for term in &self.terms {
            write!(f, "{between}{term}")?;
            between = "; ";
        }
        Ok(())
    }
}

impl Einsum {
    /// Returns the gradient by an operand: a factor, a scalar factor or the bias.
    ///
    /// The gradient of a factor is the gradient of the output times the other factors, with the indices of the factor. A
    /// gather becomes a scatter, and a scatter becomes a gather. A factor that occurs twice gets the sum of two terms. The
    /// gradient of a bias is the sum over the indices that the bias does not have. The gradient of a scalar is a tensor without axes.
    ///
    /// The operands of the gradient are those of the expression, and `dC`, the gradient of the output `C`. After a ReLU,
    /// the gradient also reads `C`. After a GELU, and after a ReLU with `+=`, it reads the sums before the function, which
    /// are named `C'`. Shapes and formats are those of the operands: the gradient of a sparse operand has its pattern.
    ///
    /// ```
    /// use einsparse_lang::einsum::Einsum;
    /// let e = Einsum::parse("C[m,n] = A[m,k] * B[K[k],n]")?;
    /// assert_eq!(e.gradient("A")?.to_string(), "dA[m,k] = dC[m,n] * B[K[k],n]");
    /// let by_b = e.gradient("B")?;
    /// assert_eq!(by_b.to_string(), "dB[K[k],n] = A[m,k] * dC[m,n]");
    /// // The gradient of a gradient.
    /// assert_eq!(by_b.terms[0].gradient("dC")?.to_string(), "ddC[m,n] = A[m,k] * ddB[K[k],n]");
    /// # Ok::<(), einsparse_lang::Error>(())
    /// ```
    ///
    /// # Errors
    /// - Errors of [`Einsum::validate`].
    /// - [`Error::UnknownOperand`] if the expression does not name the operand.
    /// - [`Error::Operand`] for the output, for an index array, and for the gate of `relu_grad`.
    pub fn gradient(&self, name: &str) -> Result<Gradient> {
        self.validate()?;
        let mut names = Names::of(self);
        let uses = self.uses(name)?;
        let seed = names.fresh(&format!("d{}", self.out.tensor));
        let sums = self.sums_gradient(&seed, &mut names);
        let of_sums = sums.as_ref().map_or(&seed, |sums| &sums.out.tensor).clone();
        let output = names.fresh(&format!("d{name}"));
        let mut ones = Vec::new();
        let mut terms: Vec<Einsum> = Vec::new();
        for place in uses {
            let mut term = self.term(place, (&output, &of_sums), &mut names);
            if !terms.is_empty() {
                term.mode = Mode::Accumulate;
            }
            names.repeat(&mut term, &mut ones);
            term.text = term.to_string();
            terms.push(term);
        }
        Ok(Gradient { operand: name.to_owned(), seed, sums, terms, ones })
    }

    /// Returns the positions of an operand.
    fn uses(&self, name: &str) -> Result<Vec<Place>> {
        let scalars = self.scalars.iter().enumerate().filter_map(|(at, scalar)| match scalar {
            Scalar::Name(own) if own == name => Some(Place::Scalar(at)),
            _ => None,
        });
        let factors = self.factors.iter().enumerate();
        let factors = factors.filter(|(_, f)| f.tensor == name).map(|(at, _)| Place::Factor(at));
        let bias = self.epilogue.bias.iter().filter(|bias| bias.tensor == name);
        let uses: Vec<Place> = scalars.chain(factors).chain(bias.map(|_| Place::Bias)).collect();
        let mut arrays: Vec<&str> = Vec::new();
        for access in self.right().chain([&self.out]) {
            access.for_each_access(&mut |nested| {
                if !std::ptr::eq(nested, access) {
                    arrays.push(&nested.tensor);
                }
            });
        }
        let refuse = |reason: &str| Err(Error::operand(name, format!("{reason} in `{self}`")));
        if self.out.tensor == name {
            return refuse("has no gradient: it is the output");
        }
        if arrays.contains(&name) {
            return refuse("has no gradient: it is an index array");
        }
        if self.epilogue.gate.as_ref().is_some_and(|gate| gate.tensor == name) {
            return refuse(
                "has no gradient: it is the gate of `relu_grad`, which is read only for its sign,",
            );
        }
        if uses.is_empty() {
            return Err(Error::unknown(name, self));
        }
        Ok(uses)
    }

    /// Returns the gradient of the sums before the activation, over all elements of the output. `None` without an
    /// activation or a gate.
    fn sums_gradient(&self, seed: &str, names: &mut Names) -> Option<SumsGradient> {
        let out = &self.out.tensor;
        let (gate, activation) = match (&self.epilogue.gate, self.epilogue.activation) {
            (Some(gate), _) => (gate.tensor.clone(), Activation::Relu),
            (None, Activation::Identity) => return None,
            // The output of a ReLU is positive where the sum is.
            (None, Activation::Relu) if self.mode == Mode::Assign => {
                (out.clone(), Activation::Relu)
            }
            (None, activation) => (names.fresh(&format!("{out}'")), activation),
        };
        let own = names.fresh(&format!("d{out}'"));
        let indices = names.plain(&self.out);
        let access = |tensor: &str| Access { tensor: tensor.to_owned(), indices: indices.clone() };
        Some(SumsGradient {
            out: access(&own),
            seed: access(seed),
            gate: access(&gate),
            activation,
        })
    }

    /// Returns the gradient by one occurrence of an operand.
    fn term(&self, place: Place, (output, seed): (&str, &str), names: &mut Names) -> Einsum {
        let access = |tensor: &str, indices: &[IndexExpr]| Access {
            tensor: tensor.to_owned(),
            indices: indices.to_vec(),
        };
        let of_output = access(seed, &self.out.indices);
        let (mut scalars, mut factors) = (self.scalars.clone(), self.factors.clone());
        let indices = match place {
            Place::Factor(at) => std::mem::replace(&mut factors[at], of_output).indices,
            Place::Scalar(at) => {
                scalars.remove(at);
                factors.push(of_output);
                Vec::new()
            }
            Place::Bias => {
                // The bias is added once to each element of the output, also where the product is scattered.
                let bias = self.epilogue.bias.as_ref().map_or(&[][..], |bias| &bias.indices);
                scalars.clear();
                factors = vec![access(seed, &names.plain(&self.out))];
                bias.to_vec()
            }
        };
        Einsum {
            out: access(output, &indices),
            mode: Mode::Assign,
            scalars,
            factors,
            epilogue: Epilogue::default(),
            text: String::new(),
        }
    }
}

/// Position of an operand in an expression.
#[derive(Clone, Copy, Debug)]
enum Place {
    Factor(usize),
    Scalar(usize),
    Bias,
}

/// Names of an expression: new ones differ from them.
struct Names {
    tensors: BTreeSet<String>,
    indices: BTreeSet<String>,
}

impl Names {
    fn of(e: &Einsum) -> Self {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        Names { tensors: owned(e.names()), indices: owned(e.index_names()) }
    }

    fn fresh(&mut self, base: &str) -> String {
        fresh(&mut self.tensors, base)
    }

    /// Returns one plain index per axis of the output. Only the first axis with an index keeps it, so that all elements
    /// are visited, and not a diagonal.
    fn plain(&mut self, out: &Access) -> Vec<IndexExpr> {
        let mut indices: Vec<IndexExpr> = Vec::new();
        for (axis, index) in out.indices.iter().enumerate() {
            let base = match index {
                IndexExpr::Name(_) if !indices.contains(index) => {
                    indices.push(index.clone());
                    continue;
                }
                IndexExpr::Name(name) => name.clone(),
                _ => format!("i{axis}"),
            };
            indices.push(IndexExpr::Name(fresh(&mut self.indices, &base)));
        }
        indices
    }

    /// Multiplies a term by ones along the indices that only its output has.
    fn repeat(&mut self, term: &mut Einsum, ones: &mut Vec<Ones>) {
        let mut read: Vec<String> = Vec::new();
        term.factors.iter().for_each(|f| f.for_each_name(&mut |n| read.push(n.to_owned())));
        let mut wanted: Vec<String> = Vec::new();
        term.out.for_each_name(&mut |n| {
            if !read.iter().chain(&wanted).any(|own| own == n) {
                wanted.push(n.to_owned());
            }
        });
        for index in wanted {
            let known = ones.iter().find(|own| own.index == index).map(|own| own.name.clone());
            let name = known.unwrap_or_else(|| {
                let name = self.fresh(&format!("ones_{index}"));
                ones.push(Ones { name: name.clone(), index: index.clone() });
                name
            });
            let indices = vec![IndexExpr::Name(index)];
            term.factors.push(Access { tensor: name, indices });
        }
    }
}
