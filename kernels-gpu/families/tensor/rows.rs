//! The rows of the family `tensor`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_tensor {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            tensor {
                mttkrp "mttkrp" MttkrpParams sm_80 Rows {
                    mttkrp_f32_g1_n16: Csr, F32, Rows<1, 4, 4, 1, 4>;
                    mttkrp_f32_g1_n32: Csr, F32, Rows<1, 8, 4, 1, 4>;
                    mttkrp_f32_g1_n32_u8: Csr, F32, Rows<1, 8, 4, 1, 8>;
                    mttkrp_f32_g1_n64: Csr, F32, Rows<1, 16, 4, 1, 4>;
                    mttkrp_f32_g1_n128: Csr, F32, Rows<1, 32, 4, 1, 4>;
                    mttkrp_f32_g1_any8: Csr, F32, Rows<1, 8, 1, 1, 4>;
                    mttkrp_f32_g1_any32: Csr, F32, Rows<1, 32, 1, 1, 4>;
                    mttkrp_f32_g2_n16: Csr, F32, Rows<2, 4, 4, 1, 4>;
                    mttkrp_f32_g2_n32: Csr, F32, Rows<2, 8, 4, 1, 4>;
                    mttkrp_f32_g2_n32_u8: Csr, F32, Rows<2, 8, 4, 1, 8>;
                    mttkrp_f32_g2_n64: Csr, F32, Rows<2, 16, 4, 1, 4>;
                    mttkrp_f32_g2_n128: Csr, F32, Rows<2, 32, 4, 1, 4>;
                    mttkrp_f32_g2_any8: Csr, F32, Rows<2, 8, 1, 1, 4>;
                    mttkrp_f32_g2_any32: Csr, F32, Rows<2, 32, 1, 1, 4>;
                    mttkrp_f32_g3_n16: Csr, F32, Rows<3, 4, 4, 1, 4>;
                    mttkrp_f32_g3_n32: Csr, F32, Rows<3, 8, 4, 1, 4>;
                    mttkrp_f32_g3_n64: Csr, F32, Rows<3, 16, 4, 1, 4>;
                    mttkrp_f32_g3_n128: Csr, F32, Rows<3, 32, 4, 1, 4>;
                    mttkrp_f32_g3_any8: Csr, F32, Rows<3, 8, 1, 1, 4>;
                    mttkrp_f32_max_n32: Csr, F32, Rows<1, 8, 4, 1, 4, REDUCE_MAX>;
                    mttkrp_f32_max_n128: Csr, F32, Rows<1, 32, 4, 1, 4, REDUCE_MAX>;
                    mttkrp_f32_max_any32: Csr, F32, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                    mttkrp_f64_g1_n16: Csr, F64, Rows<1, 8, 2, 1, 4>;
                    mttkrp_f64_g1_n32: Csr, F64, Rows<1, 16, 2, 1, 4>;
                    mttkrp_f64_g1_n64: Csr, F64, Rows<1, 32, 2, 1, 4>;
                    mttkrp_f64_g1_any8: Csr, F64, Rows<1, 8, 1, 1, 4>;
                    mttkrp_f64_g1_any32: Csr, F64, Rows<1, 32, 1, 1, 4>;
                    mttkrp_f64_g2_n16: Csr, F64, Rows<2, 8, 2, 1, 4>;
                    mttkrp_f64_g2_n32: Csr, F64, Rows<2, 16, 2, 1, 4>;
                    mttkrp_f64_g2_n64: Csr, F64, Rows<2, 32, 2, 1, 4>;
                    mttkrp_f64_g2_any8: Csr, F64, Rows<2, 8, 1, 1, 4>;
                    mttkrp_f64_g2_any32: Csr, F64, Rows<2, 32, 1, 1, 4>;
                    mttkrp_f64_g3_n16: Csr, F64, Rows<3, 8, 2, 1, 4>;
                    mttkrp_f64_g3_n32: Csr, F64, Rows<3, 16, 2, 1, 4>;
                    mttkrp_f64_g3_n64: Csr, F64, Rows<3, 32, 2, 1, 4>;
                    mttkrp_f64_g3_any8: Csr, F64, Rows<3, 8, 1, 1, 4>;
                    mttkrp_f64_max_n32: Csr, F64, Rows<1, 16, 2, 1, 4, REDUCE_MAX>;
                    mttkrp_f64_max_n64: Csr, F64, Rows<1, 32, 2, 1, 4, REDUCE_MAX>;
                    mttkrp_f64_max_any32: Csr, F64, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                    mttkrp_f16_g1_n32: Csr, F16, Rows<1, 4, 8, 1, 4>;
                    mttkrp_f16_g1_n64: Csr, F16, Rows<1, 8, 8, 1, 4>;
                    mttkrp_f16_g1_n128: Csr, F16, Rows<1, 16, 8, 1, 4>;
                    mttkrp_f16_g1_any8: Csr, F16, Rows<1, 8, 1, 1, 4>;
                    mttkrp_f16_g1_any32: Csr, F16, Rows<1, 32, 1, 1, 4>;
                    mttkrp_f16_g2_n32: Csr, F16, Rows<2, 4, 8, 1, 4>;
                    mttkrp_f16_g2_n64: Csr, F16, Rows<2, 8, 8, 1, 4>;
                    mttkrp_f16_g2_n128: Csr, F16, Rows<2, 16, 8, 1, 4>;
                    mttkrp_f16_g2_any8: Csr, F16, Rows<2, 8, 1, 1, 4>;
                    mttkrp_f16_g2_any32: Csr, F16, Rows<2, 32, 1, 1, 4>;
                    mttkrp_f16_g3_n32: Csr, F16, Rows<3, 4, 8, 1, 4>;
                    mttkrp_f16_g3_n64: Csr, F16, Rows<3, 8, 8, 1, 4>;
                    mttkrp_f16_g3_n128: Csr, F16, Rows<3, 16, 8, 1, 4>;
                    mttkrp_f16_g3_any8: Csr, F16, Rows<3, 8, 1, 1, 4>;
                    mttkrp_f16_g3_any32: Csr, F16, Rows<3, 32, 1, 1, 4>;
                    mttkrp_f16_max_n32: Csr, F16, Rows<1, 4, 8, 1, 4, REDUCE_MAX>;
                    mttkrp_f16_max_n128: Csr, F16, Rows<1, 16, 8, 1, 4, REDUCE_MAX>;
                    mttkrp_f16_max_any32: Csr, F16, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                    mttkrp_bf16_g1_n32: Csr, Bf16, Rows<1, 4, 8, 1, 4>;
                    mttkrp_bf16_g1_n64: Csr, Bf16, Rows<1, 8, 8, 1, 4>;
                    mttkrp_bf16_g1_n128: Csr, Bf16, Rows<1, 16, 8, 1, 4>;
                    mttkrp_bf16_g1_any8: Csr, Bf16, Rows<1, 8, 1, 1, 4>;
                    mttkrp_bf16_g1_any32: Csr, Bf16, Rows<1, 32, 1, 1, 4>;
                    mttkrp_bf16_g2_n32: Csr, Bf16, Rows<2, 4, 8, 1, 4>;
                    mttkrp_bf16_g2_n64: Csr, Bf16, Rows<2, 8, 8, 1, 4>;
                    mttkrp_bf16_g2_n128: Csr, Bf16, Rows<2, 16, 8, 1, 4>;
                    mttkrp_bf16_g2_any8: Csr, Bf16, Rows<2, 8, 1, 1, 4>;
                    mttkrp_bf16_g2_any32: Csr, Bf16, Rows<2, 32, 1, 1, 4>;
                    mttkrp_bf16_g3_n32: Csr, Bf16, Rows<3, 4, 8, 1, 4>;
                    mttkrp_bf16_g3_n64: Csr, Bf16, Rows<3, 8, 8, 1, 4>;
                    mttkrp_bf16_g3_n128: Csr, Bf16, Rows<3, 16, 8, 1, 4>;
                    mttkrp_bf16_g3_any8: Csr, Bf16, Rows<3, 8, 1, 1, 4>;
                    mttkrp_bf16_g3_any32: Csr, Bf16, Rows<3, 32, 1, 1, 4>;
                    mttkrp_bf16_max_n32: Csr, Bf16, Rows<1, 4, 8, 1, 4, REDUCE_MAX>;
                    mttkrp_bf16_max_n128: Csr, Bf16, Rows<1, 16, 8, 1, 4, REDUCE_MAX>;
                    mttkrp_bf16_max_any32: Csr, Bf16, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                    mttkrp_f32_dots2_r32: Csr, F32, RowDots<2, 8, 4>;
                    mttkrp_f32_dots2_r128: Csr, F32, RowDots<2, 32, 4>;
                    mttkrp_f32_dots2_any: Csr, F32, RowDots<2, 8, 1>;
                    mttkrp_f32_dots3_r32: Csr, F32, RowDots<3, 8, 4>;
                    mttkrp_f32_dots3_r128: Csr, F32, RowDots<3, 32, 4>;
                    mttkrp_f32_dots3_any: Csr, F32, RowDots<3, 8, 1>;
                    mttkrp_f32_dots1_any: Csr, F32, RowDots<1, 8, 1>;
                    mttkrp_f64_dots2_r32: Csr, F64, RowDots<2, 16, 2>;
                    mttkrp_f64_dots2_any: Csr, F64, RowDots<2, 8, 1>;
                    mttkrp_f64_dots3_r32: Csr, F64, RowDots<3, 16, 2>;
                    mttkrp_f64_dots3_any: Csr, F64, RowDots<3, 8, 1>;
                    mttkrp_f64_dots1_any: Csr, F64, RowDots<1, 8, 1>;
                    mttkrp_f16_dots2_r32: Csr, F16, RowDots<2, 4, 8>;
                    mttkrp_f16_dots2_r128: Csr, F16, RowDots<2, 16, 8>;
                    mttkrp_f16_dots2_any: Csr, F16, RowDots<2, 8, 1>;
                    mttkrp_f16_dots3_r32: Csr, F16, RowDots<3, 4, 8>;
                    mttkrp_f16_dots3_r128: Csr, F16, RowDots<3, 16, 8>;
                    mttkrp_f16_dots3_any: Csr, F16, RowDots<3, 8, 1>;
                    mttkrp_f16_dots1_any: Csr, F16, RowDots<1, 8, 1>;
                    mttkrp_bf16_dots2_r32: Csr, Bf16, RowDots<2, 4, 8>;
                    mttkrp_bf16_dots2_r128: Csr, Bf16, RowDots<2, 16, 8>;
                    mttkrp_bf16_dots2_any: Csr, Bf16, RowDots<2, 8, 1>;
                    mttkrp_bf16_dots3_r32: Csr, Bf16, RowDots<3, 4, 8>;
                    mttkrp_bf16_dots3_r128: Csr, Bf16, RowDots<3, 16, 8>;
                    mttkrp_bf16_dots3_any: Csr, Bf16, RowDots<3, 8, 1>;
                    mttkrp_bf16_dots1_any: Csr, Bf16, RowDots<1, 8, 1>;
                }
                tensor_product "tensor_product" TensorProductParams sm_80 TensorProduct {
                    tensor_product_items_f32: Csr, F32, TensorItems;
                    tensor_product_items_f64: Csr, F64, TensorItems;
                    tensor_product_items_f16: Csr, F16, TensorItems;
                    tensor_product_items_bf16: Csr, Bf16, TensorItems;
                    tensor_product_channels_f32: Csr, F32, TensorChannels;
                    tensor_product_channels_f64: Csr, F64, TensorChannels;
                    tensor_product_channels_f16: Csr, F16, TensorChannels;
                    tensor_product_channels_bf16: Csr, Bf16, TensorChannels;
                    tensor_product_sums_f32: Csr, F32, TensorSums;
                    tensor_product_sums_f64: Csr, F64, TensorSums;
                    tensor_product_sums_f16: Csr, F16, TensorSums;
                    tensor_product_sums_bf16: Csr, Bf16, TensorSums;
                    tensor_product_connected_f32: Csr, F32, TensorConnected;
                    tensor_product_connected_f64: Csr, F64, TensorConnected;
                    tensor_product_connected_f16: Csr, F16, TensorConnected;
                    tensor_product_connected_bf16: Csr, Bf16, TensorConnected;
                    tensor_product_traces_f32: Csr, F32, TensorTraces;
                    tensor_product_traces_f64: Csr, F64, TensorTraces;
                    tensor_product_traces_f16: Csr, F16, TensorTraces;
                    tensor_product_traces_bf16: Csr, Bf16, TensorTraces;
                    tensor_product_weights_f32: Csr, F32, TensorWeights;
                    tensor_product_weights_f64: Csr, F64, TensorWeights;
                    tensor_product_weights_f16: Csr, F16, TensorWeights;
                    tensor_product_weights_bf16: Csr, Bf16, TensorWeights;
                    tensor_product_own_connected_f32: Csr, F32, TensorOwnConnected;
                    tensor_product_own_connected_f64: Csr, F64, TensorOwnConnected;
                    tensor_product_own_connected_f16: Csr, F16, TensorOwnConnected;
                    tensor_product_own_connected_bf16: Csr, Bf16, TensorOwnConnected;
                    tensor_product_own_traces_f32: Csr, F32, TensorOwnTraces;
                    tensor_product_own_traces_f64: Csr, F64, TensorOwnTraces;
                    tensor_product_own_traces_f16: Csr, F16, TensorOwnTraces;
                    tensor_product_own_traces_bf16: Csr, Bf16, TensorOwnTraces;
                    tensor_product_own_weights_f32: Csr, F32, TensorOwnWeights;
                    tensor_product_own_weights_f64: Csr, F64, TensorOwnWeights;
                    tensor_product_own_weights_f16: Csr, F16, TensorOwnWeights;
                    tensor_product_own_weights_bf16: Csr, Bf16, TensorOwnWeights;
                }
                equivariant "equivariant" EquivariantParams sm_90a Own {
                    equivariant_forward_f32_l1: Direct, F32, EquivariantForward<1, false, 8>;
                    equivariant_forward_f32_l2: Direct, F32, EquivariantForward<2, false, 4>;
                    equivariant_forward_f32_l3: Direct, F32, EquivariantForward<3, false, 3>;
                    equivariant_forward_f32_odd: Direct, F32, EquivariantForward<3, true, 3>;
                    equivariant_backward_f32_l1: Direct, F32, EquivariantBackward<1, false, 5, 1>;
                    equivariant_backward_f32_l2: Direct, F32, EquivariantBackward<2, false, 4, 1>;
                    equivariant_backward_f32_l3: Direct, F32, EquivariantBackward<3, false, 3, 1>;
                    equivariant_backward_f32_l1_c2: Direct, F32, EquivariantBackward<1, false, 8, 2>;
                    equivariant_backward_f32_l2_c2: Direct, F32, EquivariantBackward<2, false, 6, 2>;
                    equivariant_backward_f32_odd: Direct, F32, EquivariantBackward<3, true, 3, 1>;
                }
                edge_geometry "edge_geometry" GeometryParams sm_80 Own {
                    edge_geometry_forward_f32: Direct, F32, GeometryForward;
                    edge_geometry_forward_f64: Direct, F64, GeometryForward;
                    edge_geometry_backward_f32: Direct, F32, GeometryBackward;
                    edge_geometry_backward_f64: Direct, F64, GeometryBackward;
                }
                message "message" MessageParams sm_80 Own {
                    message_first_f32: Direct, F32, FirstLargest;
                    message_first_f64: Direct, F64, FirstLargest;
                    message_first_f16: Direct, F16, FirstLargest;
                    message_first_bf16: Direct, Bf16, FirstLargest;
                    message_pick_f32: Direct, F32, PickLargest;
                    message_pick_f64: Direct, F64, PickLargest;
                    message_pick_f16: Direct, F16, PickLargest;
                    message_pick_bf16: Direct, Bf16, PickLargest;
                    message_weights_f32: Direct, F32, LargestWeights;
                    message_weights_f64: Direct, F64, LargestWeights;
                    message_weights_f16: Direct, F16, LargestWeights;
                    message_weights_bf16: Direct, Bf16, LargestWeights;
                }
                join "join" JoinParams sm_80 Own {
                    join_count: Direct, F32, JoinCount;
                    join_starts: Direct, F32, JoinStarts;
                    join_fill: Direct, F32, JoinFill;
                }
                einsum "einsum" EinsumParams sm_80 Einsum {
                    einsum_f32_x1_wide1: Listed, F32, Wide<1, 0, 4>;
                    einsum_f32_x2_wide2: Listed, F32, Wide<2, 0, 4>;
                    einsum_f32_x2_wide1: Listed, F32, Wide<2, 1, 4>;
                    einsum_f32_x3_wide2: Listed, F32, Wide<3, 1, 4>;
                    einsum_f32_x3_wide1: Listed, F32, Wide<3, 2, 4>;
                    einsum_f32_x4_wide2: Listed, F32, Wide<4, 2, 4>;
                    einsum_f32_x4_wide1: Listed, F32, Wide<4, 3, 4>;
                    einsum_f32_x5_wide2: Listed, F32, Wide<5, 3, 4>;
                    einsum_f32_x5_wide1: Listed, F32, Wide<5, 4, 4>;
                    einsum_f32_x1: Listed, F32, Thin<1>;
                    einsum_f32_x2: Listed, F32, Thin<2>;
                    einsum_f32_x3: Listed, F32, Thin<3>;
                    einsum_f32_x4: Listed, F32, Thin<4>;
                    einsum_f32_x5: Listed, F32, Thin<5>;
                    einsum_f32_x1_across: Listed, F32, Across<1>;
                    einsum_f32_x2_across: Listed, F32, Across<2>;
                    einsum_f64_x1_wide1: Listed, F64, Wide<1, 0, 2>;
                    einsum_f64_x2_wide2: Listed, F64, Wide<2, 0, 2>;
                    einsum_f64_x2_wide1: Listed, F64, Wide<2, 1, 2>;
                    einsum_f64_x3_wide2: Listed, F64, Wide<3, 1, 2>;
                    einsum_f64_x3_wide1: Listed, F64, Wide<3, 2, 2>;
                    einsum_f64_x4_wide2: Listed, F64, Wide<4, 2, 2>;
                    einsum_f64_x4_wide1: Listed, F64, Wide<4, 3, 2>;
                    einsum_f64_x5_wide2: Listed, F64, Wide<5, 3, 2>;
                    einsum_f64_x5_wide1: Listed, F64, Wide<5, 4, 2>;
                    einsum_f64_x1: Listed, F64, Thin<1>;
                    einsum_f64_x2: Listed, F64, Thin<2>;
                    einsum_f64_x3: Listed, F64, Thin<3>;
                    einsum_f64_x4: Listed, F64, Thin<4>;
                    einsum_f64_x5: Listed, F64, Thin<5>;
                    einsum_f64_x1_across: Listed, F64, Across<1>;
                    einsum_f64_x2_across: Listed, F64, Across<2>;
                    einsum_f16_x1_wide1: Listed, F16, Wide<1, 0, 8>;
                    einsum_f16_x2_wide2: Listed, F16, Wide<2, 0, 8>;
                    einsum_f16_x2_wide1: Listed, F16, Wide<2, 1, 8>;
                    einsum_f16_x3_wide2: Listed, F16, Wide<3, 1, 8>;
                    einsum_f16_x3_wide1: Listed, F16, Wide<3, 2, 8>;
                    einsum_f16_x4_wide2: Listed, F16, Wide<4, 2, 8>;
                    einsum_f16_x4_wide1: Listed, F16, Wide<4, 3, 8>;
                    einsum_f16_x5_wide2: Listed, F16, Wide<5, 3, 8>;
                    einsum_f16_x5_wide1: Listed, F16, Wide<5, 4, 8>;
                    einsum_f16_x1: Listed, F16, Thin<1>;
                    einsum_f16_x2: Listed, F16, Thin<2>;
                    einsum_f16_x3: Listed, F16, Thin<3>;
                    einsum_f16_x4: Listed, F16, Thin<4>;
                    einsum_f16_x5: Listed, F16, Thin<5>;
                    einsum_f16_x1_across: Listed, F16, Across<1>;
                    einsum_f16_x2_across: Listed, F16, Across<2>;
                    einsum_bf16_x1_wide1: Listed, Bf16, Wide<1, 0, 8>;
                    einsum_bf16_x2_wide2: Listed, Bf16, Wide<2, 0, 8>;
                    einsum_bf16_x2_wide1: Listed, Bf16, Wide<2, 1, 8>;
                    einsum_bf16_x3_wide2: Listed, Bf16, Wide<3, 1, 8>;
                    einsum_bf16_x3_wide1: Listed, Bf16, Wide<3, 2, 8>;
                    einsum_bf16_x4_wide2: Listed, Bf16, Wide<4, 2, 8>;
                    einsum_bf16_x4_wide1: Listed, Bf16, Wide<4, 3, 8>;
                    einsum_bf16_x5_wide2: Listed, Bf16, Wide<5, 3, 8>;
                    einsum_bf16_x5_wide1: Listed, Bf16, Wide<5, 4, 8>;
                    einsum_bf16_x1: Listed, Bf16, Thin<1>;
                    einsum_bf16_x2: Listed, Bf16, Thin<2>;
                    einsum_bf16_x3: Listed, Bf16, Thin<3>;
                    einsum_bf16_x4: Listed, Bf16, Thin<4>;
                    einsum_bf16_x5: Listed, Bf16, Thin<5>;
                    einsum_bf16_x1_across: Listed, Bf16, Across<1>;
                    einsum_bf16_x2_across: Listed, Bf16, Across<2>;
                }
            }
        }
    };
}
