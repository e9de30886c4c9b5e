//! Channel-wise tensor products, `Out[r,k,u] = C[i,j,k] X[o,i,u] Y[e,j] W[e,path,u]` summed over the entries e of a
//! row, and their gradients. The coefficients are constants, and a path is straight code. A lane has one or two
//! channels of an item in registers. Asynchronous copies prefetch rows of channels for later entries.

mod backward;
mod entries;
mod forward;
mod path;

use crate::device::prelude::*;
use crate::families::tensor::abi::*;

use entries::Entries;

impl<W: WalkInfo, E: Elem, const BACKWARD: bool, const CHANNELS: usize, F: EquivariantForm>
    Kernel<W, E, EquivariantParams> for Equivariant<BACKWARD, CHANNELS, F>
{
    #[inline(always)]
    unsafe fn run(p: &EquivariantParams, _: u64) {
        Entries::<BACKWARD, CHANNELS, F>::prepare(p);
        if BACKWARD {
            Equivariant::<true, CHANNELS, F>::backward::<E>(p);
        } else {
            Equivariant::<false, 1, F>::forward::<E>(p);
        }
    }
}

impl<const BACKWARD: bool, const CHANNELS: usize, F: EquivariantForm>
    Equivariant<BACKWARD, CHANNELS, F>
{
    const PATHS: Paths = Paths::of(F::LARGEST as usize, F::ODD);
}

/// Components of an operand: degrees 0 to 3.
pub const COMPONENTS: usize = 16;

/// One channel of all components of an operand.
pub type Part<E> = [<E as Elem>::Acc; COMPONENTS];

/// The row of this lane, and the first of its channels.
#[derive(Clone, Copy)]
pub struct Lane {
    pub row: u32,
    pub channel: u32,
    pub inside: bool,
}

/// Returns the first position and the end of a row.
#[inline(always)]
fn positions(p: &EquivariantParams, row: u32) -> [u32; 2] {
    if p.starts == 0 {
        return [row, row + 1];
    }
    let at = p.starts + row as u64 * 4;
    [global::ld_nc_b32(at, true), global::ld_nc_b32(at + 4, true)]
}

/// Returns the entry at a position, and the other end of its edge.
#[inline(always)]
fn entry(p: &EquivariantParams, at: u32, ok: bool) -> [u32; 2] {
    let one = |list: u64| match list {
        0 => at,
        _ => global::ld_nc_b32(list + at as u64 * 4, ok),
    };
    [one(p.entries), one(p.others)]
}

/// Address of an item's channel: of X (0), W (2), Out (3), gradients of X (4) and W (6).
#[inline(always)]
fn channel_of<E: Elem>(p: &EquivariantParams, which: usize, item: u32, channel: u32) -> u64 {
    let base = [p.x, p.y, p.w, p.out, p.dx, p.dy, p.dw][which];
    base + item as u64 * p.item_bytes[which] + (channel * E::BYTES) as u64
}

/// Address of the next row. It is hidden from the compiler, which would keep all distances in registers.
#[inline(always)]
fn next_row(at: u64, bytes: u32) -> u64 {
    warp::opaque_address(at + bytes as u64)
}

/// Loads one element in program order: loads for a later path stay before the products of an earlier one.
#[inline(always)]
fn load<E: Elem>(at: u64, ok: bool) -> E::Acc {
    E::get(&E::ld_global::<1>(at, ok), 0)
}

/// Whether an operand, X (0) or Y (1), has a degree.
#[inline(always)]
fn has_degree(p: &EquivariantParams, operand: usize, degree: usize) -> bool {
    p.degrees >> (operand * DEGREES + degree) & 1 != 0
}

/// Calls `each` with the components of X (0), or of its gradient (2), and their addresses in an item.
#[inline(always)]
fn each_component<F: EquivariantForm>(
    p: &EquivariantParams,
    which: usize,
    item: u64,
    mut each: impl FnMut(usize, u64),
) {
    unroll!(l < 4, {
        if l as u32 <= F::LARGEST && has_degree(p, 0, l) {
            let mut at = item + p.parts[which][l] as u64;
            unroll!(m < 7, {
                if m < 2 * l + 1 {
                    each(l * l + m, at);
                    at = next_row(at, p.row_bytes[which]);
                }
            });
        }
    });
}
