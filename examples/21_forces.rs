//! Forces and a product with the Hessian, from an energy that is a chain of two Einsums. Atoms on a helix are
//! connected by springs; the energy of a spring of length `l` is `k l^4`. All derivatives are those of
//! [`einsparse::Plan::gradients`], and are compared with finite differences.

use einsparse::formats::{Csr, CsrPattern, Dense, generate};
use einsparse::{Context, Gradients, Plan, Result, SparseTensor, Stream, Tensor};

const ATOMS: usize = 24;

/// Energy as a function of the positions X, and its derivatives.
struct Springs {
    /// Row `e` has -1 and 1 at the two atoms of spring `e`.
    b: SparseTensor<f64>,
    k: Tensor<f64>,
    /// `D[e,d] = B[e,i] * X[i,d]`: the vector of each spring.
    vectors: Plan<f64>,
    energy: Plan<f64>,
    d: Tensor<f64>,
    e: Tensor<f64>,
    /// The gradient of the energy by itself: 1.
    one: Tensor<f64>,
    of_energy: Gradients<f64>,
    of_vectors: Gradients<f64>,
    /// Gradients of the gradients, for the Hessian.
    of_forces: Gradients<f64>,
    of_terms: Vec<Gradients<f64>>,
    add: Plan<f64>,
    sum: Tensor<f64>,
    stream: Stream,
}

impl Springs {
    fn new(ctx: &Context) -> Result<Springs> {
        let ends = [1, 2].into_iter().flat_map(|step| (step..ATOMS).map(move |j| [j - step, j]));
        let columns: Vec<u32> = ends.flatten().map(|atom| atom as u32).collect();
        let springs = columns.len() / 2;
        let offsets = (0..=springs).map(|spring| 2 * spring as u32).collect();
        let pattern = CsrPattern::new(springs, ATOMS, offsets, columns)?;
        let b = ctx.upload(Csr::new(pattern, [-1.0, 1.0].repeat(springs))?)?;
        let k = ctx.upload_dense(&Dense::from_fn([springs], |i| 1.0 + 0.01 * i[0] as f64)?)?;
        let x = ctx.zeros(&[ATOMS, 3])?;
        let vectors =
            ctx.plan("D[e,d] = B[e,i] * X[i,d]").operand("B", &b).operand("X", &x).build()?;
        let d = ctx.zeros(vectors.out_shape())?;
        let energy = ctx.plan("E[] = k[e] * D[e,d] * D[e,d] * D[e,f] * D[e,f]");
        let energy = energy.operand("k", &k).operand("D", &d).build()?;

        // dD is a sum of four terms, because the energy names D four times.
        let of_energy = energy.gradients(&["D"])?;
        let of_vectors = vectors.gradients(&["X"])?;
        // The Hessian: the gradient of dX by dD, and that of each term of dD by D.
        let force = of_vectors.plans().next().expect("one gradient");
        let of_forces = force.gradients(&["dD"])?;
        let of_terms =
            of_energy.plans().map(|term| term.gradients(&["D"])).collect::<Result<_>>()?;
        Ok(Springs {
            add: ctx.plan("S[e,d] += T[e,d]").operand("T", &d).build()?,
            sum: ctx.zeros(d.shape())?,
            e: ctx.zeros(&[])?,
            one: ctx.upload_dense(&Dense::new([], vec![1.0])?)?,
            stream: ctx.stream()?,
            b,
            k,
            vectors,
            energy,
            d,
            of_energy,
            of_vectors,
            of_forces,
            of_terms,
        })
    }

    /// Returns the energy and its gradient. The forces are the negative gradient.
    fn gradient(&mut self, x: &Tensor<f64>) -> Result<(f64, Dense<f64>)> {
        let Springs { b, k, one, stream, .. } = self;
        self.vectors.run(&[("B", (&*b).into()), ("X", x.into())], &mut self.d, stream)?;
        let d = &self.d;
        self.energy.run(&[("k", (&*k).into()), ("D", d.into())], &mut self.e, stream)?;
        let operands = [("k", (&*k).into()), ("D", d.into()), ("dE", (&*one).into())];
        self.of_energy.run(&operands, stream)?;
        let dd = self.of_energy.dense("D")?;
        self.of_vectors.run(&[("B", (&*b).into()), ("dD", dd.into())], stream)?;
        stream.synchronize()?;
        Ok((self.e.to_dense()?.values()[0], self.of_vectors.dense("X")?.to_dense()?))
    }

    /// Returns the product of the Hessian with `v`, at the positions of the last call of `gradient`.
    ///
    /// This is the gradient of the sum of `dX[i,d] * v[i,d]`, so `v` is the gradient of `dX`.
    fn hessian_times(&mut self, v: &Tensor<f64>) -> Result<Dense<f64>> {
        let Springs { b, k, d, one, sum, stream, .. } = self;
        self.of_forces.run(&[("B", (&*b).into()), ("ddX", v.into())], stream)?;
        let ddd = self.of_forces.dense("dD")?;
        // D occurs in four terms: its gradient is the sum of theirs.
        sum.write(&Dense::zeros(d.shape())?)?;
        for term in &mut self.of_terms {
            let seeds = [("dE", (&*one).into()), ("ddD", ddd.into())];
            let operands = [("k", (&*k).into()), ("D", (&*d).into())];
            term.run(&[operands, seeds].concat(), stream)?;
            self.add.run(&[("T", term.dense("D")?.into())], sum, stream)?;
        }
        self.of_vectors.run(&[("B", (&*b).into()), ("dD", (&*sum).into())], stream)?;
        stream.synchronize()?;
        self.of_vectors.dense("X")?.to_dense()
    }
}

/// Checks that two arrays agree up to the error of a finite difference.
fn agree(what: &str, found: &[f64], wanted: &[f64]) {
    let largest = wanted.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let errors = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    let error = errors.fold(0.0, f64::max);
    println!("{what}: largest value {largest:.3}, largest error {error:.1e}");
    assert!(largest > 1.0 && error <= 1e-7 * largest, "{what}");
}

fn main() -> Result<()> {
    const STEP: f64 = 1e-5;
    let ctx = Context::new();
    let mut springs = Springs::new(&ctx)?;
    let shape = [ATOMS, 3];
    let helix = |i: &[usize]| {
        let turn = i[0] as f64 * 0.6;
        [turn.cos(), turn.sin(), 0.3 * turn][i[1]]
    };
    let x = Dense::from_fn(shape, helix)?;
    let direction = Dense::new(shape, generate::random_values::<f64>(3 * ATOMS, 1))?;
    // Positions that are moved along a direction.
    let moved = |along: &[f64], step: f64| {
        let values = x.values().iter().zip(along).map(|(x, v)| x + step * v);
        ctx.upload_dense(&Dense::new(shape, values.collect())?)
    };

    let (energy, gradient) = springs.gradient(&ctx.upload_dense(&x)?)?;
    println!("{ctx}: energy {energy:.4}\n{}; {}", springs.of_energy, springs.of_vectors);
    let product = springs.hessian_times(&ctx.upload_dense(&direction)?)?;

    // The springs pull atoms toward each other: the forces add up to zero.
    for axis in 0..3 {
        let total: f64 = gradient.values().iter().skip(axis).step_by(3).sum();
        assert!(total.abs() < 1e-9, "the forces along axis {axis} add up to {total}");
    }
    let mut differences = Vec::new();
    for at in 0..3 * ATOMS {
        let mut along = vec![0.0; 3 * ATOMS];
        along[at] = 1.0;
        let up = springs.gradient(&moved(&along, STEP)?)?.0;
        let down = springs.gradient(&moved(&along, -STEP)?)?.0;
        differences.push((up - down) / (2.0 * STEP));
    }
    agree("gradient", gradient.values(), &differences);
    let up = springs.gradient(&moved(direction.values(), STEP)?)?.1;
    let down = springs.gradient(&moved(direction.values(), -STEP)?)?.1;
    let differences = up.values().iter().zip(down.values()).map(|(a, b)| (a - b) / (2.0 * STEP));
    agree("Hessian times a vector", product.values(), &differences.collect::<Vec<_>>());
    Ok(())
}
