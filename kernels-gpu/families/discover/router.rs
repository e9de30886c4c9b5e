//! Router: softmax over a token's logits, selection of the largest, and the gradient. One warp per token; a lane has
//! every 32nd logit. Among equal logits the first wins. Sums are trees over the lanes, bitwise reproducible.

use crate::device::lanes;
use crate::device::prelude::*;
use crate::families::discover::abi::*;
use core::f32::consts::LOG2_E;

buffers! {
    // `Router::forward` and `Router::backward` check the shapes of all operands (`host/nn/router.rs`).
    unsafe RouterParams {
        logits<E: Elem>: E, ReadWrite;
        choices: u32, Fresh;
        weights: f32, Fresh;
        weight_gradient: f32, Fresh;
        logit_gradient<E: Elem>: E, ReadWrite;
    }
}

/// A lane's elements of a row: experts `256 group + 32 i + lane`.
type Lane<T> = [[T; 8]; 4];

/// Runs a block for each element of a lane's part of a row, in groups that the row has.
macro_rules! each_expert {
    ($p:ident, $group:ident $i:ident $expert:ident, $body:block) => {
        unroll!($group < 4, {
            if $group as u32 * 256 < $p.experts {
                unroll!($i < 8, {
                    let $expert = ($group * 8 + $i) as u32 * 32 + gpu::thread() % 32;
                    $body
                });
            }
        });
    };
}

#[inline(always)]
fn load<E: Elem<Acc = f32>>(p: &RouterParams, token: u32) -> Lane<f32> {
    let row = p.logits::<E>().row(token, p.logit_bytes);
    let mut logits = [[f32::NEG_INFINITY; 8]; 4];
    each_expert!(p, group i expert, {
        let inside = expert < p.experts;
        let raw = row.bytes(expert * E::BYTES).ld_raw::<1>(inside);
        if inside {
            logits[group][i] = E::get(&raw, 0);
        }
    });
    logits
}

/// Maps a logit to an integer in the same order, with NaN above all others. Never 0, which marks a chosen logit. Zeros
/// of either sign are equal.
#[inline(always)]
fn order(x: f32) -> u32 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    if x.is_nan() {
        u32::MAX
    } else if bits >> 31 != 0 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Inverse of [`order`].
#[inline(always)]
fn logit(order: u32) -> f32 {
    f32::from_bits(match order >> 31 {
        0 => !order,
        _ => order & !(1 << 31),
    })
}

#[inline(always)]
fn power(x: f32, greatest: f32) -> f32 {
    matrix::ex2_approx((x - greatest) * LOG2_E)
}

/// Sum of the powers of all logits.
#[inline(always)]
fn powers(p: &RouterParams, logits: &Lane<f32>, greatest: f32) -> f32 {
    let mut sum = 0.0;
    each_expert!(p, group i expert, {
        if expert < p.experts {
            sum += power(logits[group][i], greatest);
        }
    });
    lanes::sum(sum)
}

/// Waits for the preceding launch. Returns the token of this warp, and the lane.
#[inline(always)]
fn start(p: &RouterParams) -> Option<(u32, u32)> {
    grid::wait_dependency();
    grid::launch_dependents();
    let token = (gpu::block_x() * ROUTER_THREADS + gpu::thread()) / 32;
    (token < p.tokens).then_some((token, gpu::thread() % 32))
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouterParams> for RouterChoose {
    #[inline(always)]
    unsafe fn run(p: &RouterParams, _: Maps) {
        let Some((token, lane)) = start(p) else { return };
        let logits = load::<E>(p, token);
        let mut left = [[0u32; 8]; 4];
        each_expert!(p, group i expert, {
            if expert < p.experts {
                left[group][i] = order(logits[group][i]);
            }
        });
        // Lane j keeps choice j.
        let (mut choice, mut own, mut greatest) = (0, 0f32, 0f32);
        let mut number = 0;
        while number < p.top {
            warp::nounroll();
            let (mut best, mut place) = (0, u32::MAX);
            each_expert!(p, group i expert, {
                if left[group][i] > best {
                    (best, place) = (left[group][i], expert);
                }
            });
            let most = warp::max(best);
            let place = warp::min(if best == most { place } else { u32::MAX });
            each_expert!(p, group i expert, {
                if expert == place {
                    left[group][i] = 0;
                }
            });
            if number == 0 {
                greatest = logit(most);
            }
            if number == lane {
                (choice, own) = (place, logit(most));
            }
            number += 1;
        }
        let of_choice = if lane < p.top { power(own, greatest) } else { 0.0 };
        let all = match p.flags & ROUTER_NORMALIZED {
            0 => powers(p, &logits, greatest),
            _ => lanes::sum(of_choice),
        };
        if lane < p.top {
            let to = token * p.top + lane;
            p.choices().at(to).st(choice);
            p.weights().at(to).st(of_choice / all);
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouterParams> for RouterGradient {
    #[inline(always)]
    unsafe fn run(p: &RouterParams, _: Maps) {
        let Some((token, lane)) = start(p) else { return };
        let (from, inside) = (token * p.top + lane, lane < p.top);
        let choice = p.choices().at(from).ld_if(inside);
        let weight = p.weights().at(from).ld_if(inside);
        let gradient = p.weight_gradient().at(from).ld_if(inside);
        let mean = lanes::sum(weight * gradient);
        let mut out = [[0f32; 8]; 4];
        let mut own = weight * (gradient - mean);
        if p.flags & ROUTER_NORMALIZED == 0 {
            // Experts that were not chosen contribute to every weight.
            own = weight * gradient;
            let logits = load::<E>(p, token);
            let mut most = 0;
            each_expert!(p, group i expert, {
                if expert < p.experts {
                    most = most.max(order(logits[group][i]));
                }
            });
            let greatest = logit(warp::max(most));
            let all = powers(p, &logits, greatest);
            each_expert!(p, group i expert, {
                if expert < p.experts {
                    out[group][i] = -mean * power(logits[group][i], greatest) / all;
                }
            });
        }
        let mut number = 0;
        while number < p.top {
            warp::nounroll();
            let place = warp::shfl(choice, number);
            let more = f32::from_bits(warp::shfl(own.to_bits(), number));
            each_expert!(p, group i expert, {
                if expert == place {
                    out[group][i] += more;
                }
            });
            number += 1;
        }
        let row = p.logit_gradient::<E>().row(token, p.gradient_bytes);
        each_expert!(p, group i expert, {
            if expert < p.experts {
                row.bytes(expert * E::BYTES).st_rounded(&[out[group][i]]);
            }
        });
    }
}
