//! Optimizer steps: four parameters a thread, every value read once and written once. The state between steps is in
//! device memory. The thread block that ends last advances it, after all have read it.

use crate::device::prelude::*;
use crate::families::optimizer::abi::*;

const FOUR: u64 = UPDATE_ELEMENTS as u64;

buffers! {
    // `nn::optimizer` allocates the moments, and checks that the other arrays have `len` elements.
    // `UpdateLaunch` checks that these permit accesses of 16 bytes, and allocates the state.
    unsafe UpdateParams {
        parameters: F32, ReadWrite;
        gradient<G: Elem>: G, ReadWrite;
        first: F32, ReadWrite;
        second: F32, ReadWrite;
        copy<E: Elem>: E, ReadWrite;
        state: u32, Fresh;
    }
}

/// Update rule of a parameter.
trait Rule {
    /// Maps parameter, gradient and both moments to the new parameter and moments.
    fn update(&self, of: [f32; 4]) -> [f32; 3];
    /// Whether the rule has a second moment.
    const SECOND: bool;
}

/// `m = beta m + g`, then `x -= rate m`, or with Nesterov `x -= rate (g + beta m)`.
struct Descent {
    rate: f32,
    beta: f32,
    decay: f32,
    nesterov: bool,
}

impl Rule for Descent {
    const SECOND: bool = false;

    #[inline(always)]
    fn update(&self, [x, g, m, _]: [f32; 4]) -> [f32; 3] {
        let g = matrix::fma_f32(self.decay, x, g);
        let m = matrix::fma_f32(self.beta, m, g);
        let along = if self.nesterov { matrix::fma_f32(self.beta, m, g) } else { m };
        [matrix::fma_f32(-self.rate, along, x), m, 0.0]
    }
}

/// Kingma and Ba, arXiv 1412.6980; decoupled decay: Loshchilov and Hutter, arXiv 1711.05101.
struct Adam {
    /// Rate over the correction of the first moment.
    step: f32,
    /// 1 / square root of the correction of the second moment.
    root: f32,
    betas: [f32; 2],
    rest: [f32; 2],
    epsilon: f32,
    /// Decay added to the gradient, and decay subtracted from the parameter: one of the two is 0.
    decays: [f32; 2],
}

/// Returns `v.sqrt()`, or zero if `v` is below the smallest normal number.
#[inline(always)]
fn root(v: f32) -> f32 {
    if v < f32::MIN_POSITIVE { 0.0 } else { v * matrix::rsqrt_approx(v) }
}

impl Rule for Adam {
    const SECOND: bool = true;

    #[inline(always)]
    fn update(&self, [x, g, m, v]: [f32; 4]) -> [f32; 3] {
        let g = matrix::fma_f32(self.decays[0], x, g);
        let x = matrix::fma_f32(-self.decays[1], x, x);
        let m = matrix::fma_f32(self.betas[0], m, matrix::mul_f32(self.rest[0], g));
        let square = matrix::mul_f32(g, g);
        let v = matrix::fma_f32(self.betas[1], v, matrix::mul_f32(self.rest[1], square));
        let below = matrix::fma_f32(root(v), self.root, self.epsilon);
        let along = matrix::mul_f32(m, matrix::rcp_approx(below));
        [matrix::fma_f32(-self.step, along, x), m, v]
    }
}

/// Updates `V` parameters from `at` on; `G` is the type of their gradient.
#[inline(always)]
fn chunk<E, G, R, const V: usize>(p: &UpdateParams, rule: &R, at: u64)
where
    E: Elem<Acc = f32>,
    G: Elem<Acc = f32>,
    R: Rule,
{
    let load = |array: Global<F32, ReadWrite>, ok: bool| array.at(at).ld_raw::<V>(ok);
    let has_first = p.first != 0;
    let raw = [
        load(p.parameters(), true),
        p.gradient::<G>().at(at).ld_raw::<V>(true),
        load(p.first(), has_first),
        load(p.second(), R::SECOND),
    ];
    let mut new = [[0.0; V]; 3];
    unroll!(i < V, {
        let [x, m, v] = rule.update([
            F32::get(&raw[0], i),
            G::get(&raw[1], i),
            F32::get(&raw[2], i),
            F32::get(&raw[3], i),
        ]);
        new[0][i] = x;
        new[1][i] = m;
        new[2][i] = v;
    });
    p.parameters().at(at).st_rounded(&new[0]);
    if has_first {
        p.first().at(at).st_rounded(&new[1]);
    }
    if R::SECOND {
        p.second().at(at).st_rounded(&new[2]);
    }
    // The element type is that of the copy; f32 means no copy.
    if E::BYTES == 2 {
        p.copy::<E>().at(at).st_rounded(&new[0]);
    }
}

#[inline(always)]
fn each<E: Elem<Acc = f32>, R: Rule>(p: &UpdateParams, rule: &R) {
    if E::BYTES == 2 && p.flags & UPDATE_NARROW != 0 {
        each_of::<E, E, R>(p, rule);
    } else {
        each_of::<E, F32, R>(p, rule);
    }
}

#[inline(always)]
fn each_of<E: Elem<Acc = f32>, G: Elem<Acc = f32>, R: Rule>(p: &UpdateParams, rule: &R) {
    let threads = UPDATE_THREADS as u64;
    let mut at = (gpu::block_x() as u64 * threads + gpu::thread() as u64) * FOUR;
    while at < p.len {
        if at + FOUR <= p.len {
            chunk::<E, G, R, 4>(p, rule, at);
        } else {
            let mut one = at;
            while one < p.len {
                chunk::<E, G, R, 1>(p, rule, one);
                one += 1;
            }
        }
        at += gpu::grid_x() as u64 * threads * FOUR;
    }
}

/// Returns the learning rate, the number of completed steps, and both corrections.
#[inline(always)]
fn state(p: &UpdateParams) -> (f32, u32, [f64; 2]) {
    let state = p.state().cast::<[u32; 4]>();
    let [rate, _, steps, _] = state.ld();
    let words = state.at(1u32).ld();
    let correction = |low: u32, high: u32| f64::from_bits((high as u64) << 32 | low as u64);
    let corrections = [correction(words[0], words[1]), correction(words[2], words[3])];
    (f32::from_bits(rate), steps, corrections)
}

/// The thread block that arrives last writes the state of the next step: `1 - beta^(t+1)` is
/// `beta (1 - beta^t) + 1 - beta`.
#[inline(always)]
fn advance(p: &UpdateParams, steps: u32, corrections: [f64; 2]) {
    // All threads of this block have read the state.
    gpu::sync_threads();
    if gpu::thread() != 0 || p.state().at(1u32).atom_add(1) + 1 != gpu::grid_x() {
        return;
    }
    let next = |i: usize| matrix::fma_f64(p.betas[i], corrections[i], 1.0 - p.betas[i]).to_bits();
    let (first, second) = (next(0), next(1));
    let words = [first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32];
    p.state().cast::<[u32; 4]>().at(1u32).st(words);
    // The rate is not changed.
    p.state().at(1u32).st(0);
    p.state().at(2u32).st(steps + 1);
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, UpdateParams> for SgdStep {
    #[inline(always)]
    unsafe fn run(p: &UpdateParams, _: Maps) {
        grid::wait_dependency();
        let (rate, steps, corrections) = state(p);
        let rule = Descent {
            rate,
            beta: p.betas[0] as f32,
            decay: p.decay,
            nesterov: p.flags & UPDATE_NESTEROV != 0,
        };
        each::<E, _>(p, &rule);
        advance(p, steps, corrections);
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, UpdateParams> for AdamStep {
    #[inline(always)]
    unsafe fn run(p: &UpdateParams, _: Maps) {
        grid::wait_dependency();
        let (rate, steps, corrections) = state(p);
        let decays =
            if p.flags & UPDATE_DECOUPLED != 0 { [0.0, rate * p.decay] } else { [p.decay, 0.0] };
        let rule = Adam {
            step: rate * matrix::rcp_approx(corrections[0] as f32),
            root: matrix::rsqrt_approx(corrections[1] as f32),
            betas: [p.betas[0] as f32, p.betas[1] as f32],
            rest: p.rest,
            epsilon: p.epsilon,
            decays,
        };
        each::<E, _>(p, &rule);
        advance(p, steps, corrections);
    }
}
