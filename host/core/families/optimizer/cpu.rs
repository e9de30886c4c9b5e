//! CPU implementation of loss, gradients and optimizer steps, accumulated in f64 and rounded once.

use einsparse_kernels::families::UpdateState;

use super::Rule;
use crate::parallel;
use crate::registry::Scalar;

/// Rows of logits in host memory: all stored elements, row stride in elements, number of classes, and a label per row.
#[derive(Clone, Copy)]
pub struct HostRows<'a, T> {
    pub logits: &'a [T],
    pub leading: usize,
    pub classes: usize,
    pub labels: &'a [i32],
}

impl<T: Scalar> HostRows<'_, T> {
    fn label(&self, row: usize) -> Option<usize> {
        let label = usize::try_from(self.labels[row]).ok()?;
        (label < self.classes).then_some(label)
    }

    fn row(&self, row: usize) -> &[T] {
        &self.logits[row * self.leading..][..self.classes]
    }

    /// Returns the max logit of a row (0 if no logit is above -Inf), and the sum of exponentials relative to it.
    fn powers(&self, row: usize) -> (f64, f64) {
        let x = || self.row(row).iter().map(|x| x.to_f64());
        let larger = |a: f64, b: f64| if b.is_nan() || a < b { b } else { a };
        let max = x().fold(f64::NEG_INFINITY, larger);
        let base = if max == f64::NEG_INFINITY { 0.0 } else { max };
        (base, x().map(|x| (x - base).exp()).sum())
    }

    /// Returns the mean loss, and 1 / (number of rows with a label).
    pub fn loss(&self) -> (f64, f64) {
        let of_row = |row: usize| {
            let label = self.label(row)?;
            let (base, sum) = self.powers(row);
            Some(sum.ln() + base - self.row(row)[label].to_f64())
        };
        let losses = parallel::collect(self.labels.len(), 64, &of_row);
        let count = losses.iter().flatten().count();
        let factor = if count == 0 { 0.0 } else { 1.0 / count as f64 };
        // The fold starts at 0, because the sum of an empty iterator is -0.
        let sum = losses.iter().flatten().fold(0.0, |sum, loss| sum + loss);
        (sum * factor, factor)
    }

    /// Computes the gradient of the mean loss into rows with row stride `leading`.
    pub fn gradient(&self, factor: f64, to: &mut [T], leading: usize) {
        parallel::chunks(to, leading, &|row, to| {
            let Some(label) = self.label(row) else {
                return to[..self.classes].fill(T::ZERO);
            };
            let (base, sum) = self.powers(row);
            for (class, (to, x)) in to.iter_mut().zip(self.row(row)).enumerate() {
                let one = f64::from(class == label);
                *to = T::from_f64(((x.to_f64() - base).exp() / sum - one) * factor);
            }
        });
    }
}

/// Computes a step of all parameters and advances the state. A moment that the rule does not use is empty.
pub fn update<G: Scalar>(
    rule: Rule,
    state: &mut UpdateState,
    parameters: &mut [f32],
    gradient: &[G],
    moments: [&mut [f32]; 2],
) {
    let [first, second] = moments;
    for (at, (x, g)) in parameters.iter_mut().zip(gradient).enumerate() {
        let mut own = [0, 1].map(|i| [&first, &second][i].get(at).map_or(0.0, |m| f64::from(*m)));
        *x = one(rule, state, [f64::from(*x), g.to_f64()], &mut own) as f32;
        for (moment, value) in [&mut *first, &mut *second].into_iter().zip(own) {
            if let Some(moment) = moment.get_mut(at) {
                *moment = value as f32;
            }
        }
    }
    state.steps += 1;
    let betas = rule.betas();
    state.corrections = [0, 1].map(|i| betas[i] * state.corrections[i] + 1.0 - betas[i]);
}

/// Returns the new value of a parameter and updates its moments.
fn one(rule: Rule, state: &UpdateState, [x, g]: [f64; 2], [m, v]: &mut [f64; 2]) -> f64 {
    let rate = f64::from(state.rate);
    match rule {
        Rule::Sgd { momentum, nesterov, decay } => {
            let g = g + decay * x;
            *m = momentum * *m + g;
            x - rate * if nesterov { g + momentum * *m } else { *m }
        }
        Rule::Adam { betas, epsilon, decay, decoupled } => {
            let (x, g) = match decoupled {
                true => (x - rate * decay * x, g),
                false => (x, g + decay * x),
            };
            *m = betas[0] * *m + (1.0 - betas[0]) * g;
            *v = betas[1] * *v + (1.0 - betas[1]) * g * g;
            let [first, second] = state.corrections;
            x - rate / first * *m / ((*v / second).sqrt() + epsilon)
        }
    }
}

/// Computes `dW[i,o] = X[n,i] dY[n,o]` and `db[o] = dY[n,o]`. Each matrix is given with its row stride in elements.
pub fn weight_gradient<T: Scalar, Out: Scalar>(
    [rows, inputs, outputs]: [usize; 3],
    [(x, ldx), (dy, ldy)]: [(&[T], usize); 2],
    (dw, leading): (&mut [Out], usize),
    db: Option<&mut [Out]>,
) {
    let wide = |row: usize| dy[row * ldy..][..outputs].iter().map(|g| g.to_f64());
    let sums = |weight: &(dyn Fn(usize) -> f64 + Sync)| {
        let mut sums = vec![0.0; outputs];
        for row in 0..rows {
            let all = sums.iter_mut().zip(wide(row));
            all.for_each(|(sum, g)| *sum += weight(row) * g);
        }
        sums
    };
    let store = |to: &mut [Out], sums: Vec<f64>| {
        let all = to.iter_mut().zip(sums);
        all.for_each(|(to, sum)| *to = Out::from_f64(sum));
    };
    parallel::chunks(dw, leading, &|input, to| {
        if input < inputs {
            store(to, sums(&|row| x[row * ldx + input].to_f64()));
        }
    });
    if let Some(db) = db {
        store(db, sums(&|_| 1.0));
    }
}
