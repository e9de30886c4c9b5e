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

buffers! {
    // `place` in `host/core/ops/tensor_product/products.rs` checks the shapes of all tensors.
    // `Edges::check` checks that both ends of every edge exist. `EquivariantLaunch` makes the lists
    // and all offsets from these.
    unsafe EquivariantParams {
        x<E: Elem>: E, ReadWrite;
        y<E: Elem>: E, ReadWrite;
        w<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
        dx<E: Elem>: E, ReadWrite;
        dy<E: Elem>: E, ReadWrite;
        dw<E: Elem>: E, ReadWrite;
        starts: u32, ReadOnly;
        entries: u32, ReadOnly;
        others: u32, ReadOnly;
    }
}

impl<W: WalkInfo, E: Elem, const BACKWARD: bool, const CHANNELS: usize, F: EquivariantForm>
    Kernel<W, E, EquivariantParams> for Equivariant<BACKWARD, CHANNELS, F>
{
    #[inline(always)]
    unsafe fn run(p: &EquivariantParams, _: Maps) {
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
    let at = p.starts().at(row);
    [at.ld(), at.at(1u32).ld()]
}

/// Returns the entry at a position, and the other end of its edge.
#[inline(always)]
fn entry(p: &EquivariantParams, at: u32, ok: bool) -> [u32; 2] {
    let one = |list: Global<u32, ReadOnly>| {
        if list.is_null() { at } else { list.at(at).ld_if(ok) }
    };
    [one(p.entries()), one(p.others())]
}

/// Address of an item's channel: of X (0), W (2), Out (3), gradients of X (4) and W (6).
#[inline(always)]
fn channel_of<E: Elem>(
    p: &EquivariantParams,
    which: usize,
    item: u32,
    channel: u32,
) -> Global<E, ReadWrite> {
    let base = [p.x(), p.y(), p.w(), p.out(), p.dx(), p.dy(), p.dw()][which];
    base.row(item, p.item_bytes[which]).bytes(channel * E::BYTES)
}

/// Address of the next row. It is hidden from the compiler, which would keep all distances in registers.
#[inline(always)]
fn next_row<E>(at: Global<E, ReadWrite>, bytes: u32) -> Global<E, ReadWrite> {
    at.bytes(bytes).opaque()
}

/// Loads one element in program order: loads for a later path stay before the products of an earlier one.
#[inline(always)]
fn load<E: Elem>(at: Global<E, ReadWrite>, ok: bool) -> E::Acc {
    E::get(&at.ld_raw::<1>(ok), 0)
}

/// Whether an operand, X (0) or Y (1), has a degree.
#[inline(always)]
fn has_degree(p: &EquivariantParams, operand: usize, degree: usize) -> bool {
    p.degrees >> (operand * DEGREES + degree) & 1 != 0
}

/// Calls `each` with the components of X (0), or of its gradient (2), and their addresses in an item.
#[inline(always)]
fn each_component<E, F: EquivariantForm>(
    p: &EquivariantParams,
    which: usize,
    item: Global<E, ReadWrite>,
    mut each: impl FnMut(usize, Global<E, ReadWrite>),
) {
    unroll!(l < 4, {
        if l as u32 <= F::LARGEST && has_degree(p, 0, l) {
            let mut at = item.bytes(p.parts[which][l]);
            unroll!(m < 7, {
                if m < 2 * l + 1 {
                    each(l * l + m, at);
                    at = next_row(at, p.row_bytes[which]);
                }
            });
        }
    });
}
