//! The rows of the family `tensor`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_tensor {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            tensor {
                "mttkrp" MttkrpParams Rows {
                    mttkrp_f32_g1_n16 F32: Csr, Rows<4, 1, GatherOf<1, 4, 4>>;
                    mttkrp_f32_g1_n32 F32: Csr, Rows<4, 1, GatherOf<1, 8, 4>>;
                    mttkrp_f32_g1_n64 F32: Csr, Rows<4, 1, GatherOf<1, 16, 4>>;
                    mttkrp_f32_g1_n128 F32: Csr, Rows<4, 1, GatherOf<1, 32, 4>>;
                    mttkrp_f64_g1_n16 F64: Csr, Rows<2, 1, GatherOf<1, 8, 4>>;
                    mttkrp_f64_g1_n32 F64: Csr, Rows<2, 1, GatherOf<1, 16, 4>>;
                    mttkrp_f64_g1_n64 F64: Csr, Rows<2, 1, GatherOf<1, 32, 4>>;
                    mttkrp_f16_g1_n32 F16, mttkrp_bf16_g1_n32 Bf16: Csr, Rows<8, 1, GatherOf<1, 4, 4>>;
                    mttkrp_f16_g1_n64 F16, mttkrp_bf16_g1_n64 Bf16: Csr, Rows<8, 1, GatherOf<1, 8, 4>>;
                    mttkrp_f16_g1_n128 F16, mttkrp_bf16_g1_n128 Bf16: Csr, Rows<8, 1, GatherOf<1, 16, 4>>;
                    mttkrp_f32_g1_any8 F32, mttkrp_f64_g1_any8 F64, mttkrp_f16_g1_any8 F16, mttkrp_bf16_g1_any8 Bf16: Csr, Rows<1, 1, GatherOf<1, 8, 4>>;
                    mttkrp_f32_g1_any32 F32, mttkrp_f64_g1_any32 F64, mttkrp_f16_g1_any32 F16, mttkrp_bf16_g1_any32 Bf16: Csr, Rows<1, 1, GatherOf<1, 32, 4>>;
                    mttkrp_f32_g2_n16 F32: Csr, Rows<4, 1, GatherOf<2, 4, 4>>;
                    mttkrp_f32_g2_n32 F32: Csr, Rows<4, 1, GatherOf<2, 8, 4>>;
                    mttkrp_f32_g2_n32_u8 F32: Csr, Rows<4, 1, GatherOf<2, 8, 8>>;
                    mttkrp_f32_g2_n64 F32: Csr, Rows<4, 1, GatherOf<2, 16, 4>>;
                    mttkrp_f32_g2_n128 F32: Csr, Rows<4, 1, GatherOf<2, 32, 4>>;
                    mttkrp_f64_g2_n16 F64: Csr, Rows<2, 1, GatherOf<2, 8, 4>>;
                    mttkrp_f64_g2_n32 F64: Csr, Rows<2, 1, GatherOf<2, 16, 4>>;
                    mttkrp_f64_g2_n64 F64: Csr, Rows<2, 1, GatherOf<2, 32, 4>>;
                    mttkrp_f16_g2_n32 F16, mttkrp_bf16_g2_n32 Bf16: Csr, Rows<8, 1, GatherOf<2, 4, 4>>;
                    mttkrp_f16_g2_n64 F16, mttkrp_bf16_g2_n64 Bf16: Csr, Rows<8, 1, GatherOf<2, 8, 4>>;
                    mttkrp_f16_g2_n128 F16, mttkrp_bf16_g2_n128 Bf16: Csr, Rows<8, 1, GatherOf<2, 16, 4>>;
                    mttkrp_f32_g2_any8 F32, mttkrp_f64_g2_any8 F64, mttkrp_f16_g2_any8 F16, mttkrp_bf16_g2_any8 Bf16: Csr, Rows<1, 1, GatherOf<2, 8, 4>>;
                    mttkrp_f32_g2_any32 F32, mttkrp_f64_g2_any32 F64, mttkrp_f16_g2_any32 F16, mttkrp_bf16_g2_any32 Bf16: Csr, Rows<1, 1, GatherOf<2, 32, 4>>;
                    mttkrp_f32_g3_n16 F32: Csr, Rows<4, 1, GatherOf<3, 4, 4>>;
                    mttkrp_f32_g3_n32 F32: Csr, Rows<4, 1, GatherOf<3, 8, 4>>;
                    mttkrp_f32_g3_n64 F32: Csr, Rows<4, 1, GatherOf<3, 16, 4>>;
                    mttkrp_f32_g3_n128 F32: Csr, Rows<4, 1, GatherOf<3, 32, 4>>;
                    mttkrp_f64_g3_n16 F64: Csr, Rows<2, 1, GatherOf<3, 8, 4>>;
                    mttkrp_f64_g3_n32 F64: Csr, Rows<2, 1, GatherOf<3, 16, 4>>;
                    mttkrp_f64_g3_n64 F64: Csr, Rows<2, 1, GatherOf<3, 32, 4>>;
                    mttkrp_f16_g3_n32 F16, mttkrp_bf16_g3_n32 Bf16: Csr, Rows<8, 1, GatherOf<3, 4, 4>>;
                    mttkrp_f16_g3_n64 F16, mttkrp_bf16_g3_n64 Bf16: Csr, Rows<8, 1, GatherOf<3, 8, 4>>;
                    mttkrp_f16_g3_n128 F16, mttkrp_bf16_g3_n128 Bf16: Csr, Rows<8, 1, GatherOf<3, 16, 4>>;
                    mttkrp_f32_g3_any8 F32, mttkrp_f64_g3_any8 F64, mttkrp_f16_g3_any8 F16, mttkrp_bf16_g3_any8 Bf16: Csr, Rows<1, 1, GatherOf<3, 8, 4>>;
                    mttkrp_f32_max_n32 F32: Csr, Rows<4, 1, GatherOf<1, 8, 4, REDUCE_MAX>>;
                    mttkrp_f32_max_n128 F32: Csr, Rows<4, 1, GatherOf<1, 32, 4, REDUCE_MAX>>;
                    mttkrp_f64_max_n32 F64: Csr, Rows<2, 1, GatherOf<1, 16, 4, REDUCE_MAX>>;
                    mttkrp_f64_max_n64 F64: Csr, Rows<2, 1, GatherOf<1, 32, 4, REDUCE_MAX>>;
                    mttkrp_f16_g3_any32 F16, mttkrp_bf16_g3_any32 Bf16: Csr, Rows<1, 1, GatherOf<3, 32, 4>>;
                    mttkrp_f16_max_n32 F16, mttkrp_bf16_max_n32 Bf16: Csr, Rows<8, 1, GatherOf<1, 4, 4, REDUCE_MAX>>;
                    mttkrp_f16_max_n128 F16, mttkrp_bf16_max_n128 Bf16: Csr, Rows<8, 1, GatherOf<1, 16, 4, REDUCE_MAX>>;
                    mttkrp_f32_max_any32 F32, mttkrp_f64_max_any32 F64, mttkrp_f16_max_any32 F16, mttkrp_bf16_max_any32 Bf16: Csr, Rows<1, 1, GatherOf<1, 32, 4, REDUCE_MAX>>;
                    mttkrp_f16_mean_n32 F16, mttkrp_bf16_mean_n32 Bf16: Csr, Rows<8, 1, GatherOf<1, 4, 4, REDUCE_MEAN>>;
                    mttkrp_f16_mean_n128 F16, mttkrp_bf16_mean_n128 Bf16: Csr, Rows<8, 1, GatherOf<1, 16, 4, REDUCE_MEAN>>;
                    mttkrp_f16_mean_any32 F16, mttkrp_bf16_mean_any32 Bf16: Csr, Rows<1, 1, GatherOf<1, 32, 4, REDUCE_MEAN>>;
                    mttkrp_f32_dots2_r32 F32: Csr, RowDots<2, 8, 4>;
                    mttkrp_f32_dots2_r128 F32: Csr, RowDots<2, 32, 4>;
                    mttkrp_f64_dots2_r32 F64: Csr, RowDots<2, 16, 2>;
                    mttkrp_f16_dots2_r32 F16, mttkrp_bf16_dots2_r32 Bf16: Csr, RowDots<2, 4, 8>;
                    mttkrp_f16_dots2_r128 F16, mttkrp_bf16_dots2_r128 Bf16: Csr, RowDots<2, 16, 8>;
                    mttkrp_f32_dots2_any F32, mttkrp_f64_dots2_any F64, mttkrp_f16_dots2_any F16, mttkrp_bf16_dots2_any Bf16: Csr, RowDots<2, 8, 1>;
                    mttkrp_f32_dots3_r32 F32: Csr, RowDots<3, 8, 4>;
                    mttkrp_f32_dots3_r128 F32: Csr, RowDots<3, 32, 4>;
                    mttkrp_f64_dots3_r32 F64: Csr, RowDots<3, 16, 2>;
                    mttkrp_f16_dots3_r32 F16, mttkrp_bf16_dots3_r32 Bf16: Csr, RowDots<3, 4, 8>;
                    mttkrp_f16_dots3_r128 F16, mttkrp_bf16_dots3_r128 Bf16: Csr, RowDots<3, 16, 8>;
                    mttkrp_f32_dots3_any F32, mttkrp_f64_dots3_any F64, mttkrp_f16_dots3_any F16, mttkrp_bf16_dots3_any Bf16: Csr, RowDots<3, 8, 1>;
                    mttkrp_f32_dots1_any F32, mttkrp_f64_dots1_any F64, mttkrp_f16_dots1_any F16, mttkrp_bf16_dots1_any Bf16: Csr, RowDots<1, 8, 1>;
                }
                "tensor_product" TensorProductParams TensorProduct {
                    tensor_product_items_f32 F32, tensor_product_items_f64 F64, tensor_product_items_f16 F16, tensor_product_items_bf16 Bf16: Csr, TensorItems;
                    tensor_product_channels_f32 F32, tensor_product_channels_f64 F64, tensor_product_channels_f16 F16, tensor_product_channels_bf16 Bf16: Csr, TensorChannels;
                    tensor_product_sums_f32 F32, tensor_product_sums_f64 F64, tensor_product_sums_f16 F16, tensor_product_sums_bf16 Bf16: Csr, TensorSums;
                    tensor_product_connected_f32 F32, tensor_product_connected_f64 F64, tensor_product_connected_f16 F16, tensor_product_connected_bf16 Bf16: Csr, TensorConnected;
                    tensor_product_traces_f32 F32, tensor_product_traces_f64 F64, tensor_product_traces_f16 F16, tensor_product_traces_bf16 Bf16: Csr, TensorTraces;
                    tensor_product_weights_f32 F32, tensor_product_weights_f64 F64, tensor_product_weights_f16 F16, tensor_product_weights_bf16 Bf16: Csr, TensorWeights;
                    tensor_product_own_connected_f32 F32, tensor_product_own_connected_f64 F64, tensor_product_own_connected_f16 F16, tensor_product_own_connected_bf16 Bf16: Csr, TensorOwnConnected;
                    tensor_product_own_traces_f32 F32, tensor_product_own_traces_f64 F64, tensor_product_own_traces_f16 F16, tensor_product_own_traces_bf16 Bf16: Csr, TensorOwnTraces;
                    tensor_product_own_weights_f32 F32, tensor_product_own_weights_f64 F64, tensor_product_own_weights_f16 F16, tensor_product_own_weights_bf16 Bf16: Csr, TensorOwnWeights;
                }
                "equivariant" EquivariantParams Own {
                    equivariant_forward_f32_l1 F32: Direct, Equivariant<false, 1, EquivariantOf<1, false, 8>>;
                    equivariant_forward_f32_l2 F32: Direct, Equivariant<false, 1, EquivariantOf<2, false, 4>>;
                    equivariant_forward_f32_l3 F32: Direct, Equivariant<false, 1, EquivariantOf<3, false, 3>>;
                    equivariant_forward_f32_odd F32: Direct, Equivariant<false, 1, EquivariantOf<3, true, 3>>;
                    equivariant_backward_f32_l1 F32: Direct, Equivariant<true, 1, EquivariantOf<1, false, 5>>;
                    equivariant_backward_f32_l2 F32: Direct, Equivariant<true, 1, EquivariantOf<2, false, 4>>;
                    equivariant_backward_f32_l3 F32: Direct, Equivariant<true, 1, EquivariantOf<3, false, 3>>;
                    equivariant_backward_f32_l1_c2 F32: Direct, Equivariant<true, 2, EquivariantOf<1, false, 8>>;
                    equivariant_backward_f32_l2_c2 F32: Direct, Equivariant<true, 2, EquivariantOf<2, false, 6>>;
                    equivariant_backward_f32_odd F32: Direct, Equivariant<true, 1, EquivariantOf<3, true, 3>>;
                }
                "graph" GeometryParams Own {
                    edge_geometry_forward_f32 F32, edge_geometry_forward_f64 F64: Direct, GeometryForward;
                    edge_geometry_backward_f32 F32, edge_geometry_backward_f64 F64: Direct, GeometryBackward;
                }
                "graph" MessageParams Own {
                    message_first_f32 F32, message_first_f64 F64, message_first_f16 F16, message_first_bf16 Bf16: Direct, FirstLargest;
                    message_pick_f32 F32, message_pick_f64 F64, message_pick_f16 F16, message_pick_bf16 Bf16: Direct, PickLargest;
                    message_weights_f32 F32, message_weights_f64 F64, message_weights_f16 F16, message_weights_bf16 Bf16: Direct, LargestWeights;
                }
                "graph" JoinParams Own {
                    join_count F32: Direct, JoinCount;
                    join_starts F32: Direct, JoinStarts;
                    join_fill F32: Direct, JoinFill;
                }
                "einsum" EinsumParams Einsum {
                    einsum_f32_x1_wide1 F32: Listed, Wide<1, 0, 4>;
                    einsum_f32_x2_wide2 F32: Listed, Wide<2, 0, 4>;
                    einsum_f32_x2_wide1 F32: Listed, Wide<2, 1, 4>;
                    einsum_f32_x3_wide2 F32: Listed, Wide<3, 1, 4>;
                    einsum_f32_x3_wide1 F32: Listed, Wide<3, 2, 4>;
                    einsum_f32_x4_wide2 F32: Listed, Wide<4, 2, 4>;
                    einsum_f32_x4_wide1 F32: Listed, Wide<4, 3, 4>;
                    einsum_f32_x5_wide2 F32: Listed, Wide<5, 3, 4>;
                    einsum_f32_x5_wide1 F32: Listed, Wide<5, 4, 4>;
                    einsum_f64_x1_wide1 F64: Listed, Wide<1, 0, 2>;
                    einsum_f64_x2_wide2 F64: Listed, Wide<2, 0, 2>;
                    einsum_f64_x2_wide1 F64: Listed, Wide<2, 1, 2>;
                    einsum_f64_x3_wide2 F64: Listed, Wide<3, 1, 2>;
                    einsum_f64_x3_wide1 F64: Listed, Wide<3, 2, 2>;
                    einsum_f64_x4_wide2 F64: Listed, Wide<4, 2, 2>;
                    einsum_f64_x4_wide1 F64: Listed, Wide<4, 3, 2>;
                    einsum_f64_x5_wide2 F64: Listed, Wide<5, 3, 2>;
                    einsum_f64_x5_wide1 F64: Listed, Wide<5, 4, 2>;
                    einsum_f16_x1_wide1 F16, einsum_bf16_x1_wide1 Bf16: Listed, Wide<1, 0, 8>;
                    einsum_f16_x2_wide2 F16, einsum_bf16_x2_wide2 Bf16: Listed, Wide<2, 0, 8>;
                    einsum_f16_x2_wide1 F16, einsum_bf16_x2_wide1 Bf16: Listed, Wide<2, 1, 8>;
                    einsum_f16_x3_wide2 F16, einsum_bf16_x3_wide2 Bf16: Listed, Wide<3, 1, 8>;
                    einsum_f16_x3_wide1 F16, einsum_bf16_x3_wide1 Bf16: Listed, Wide<3, 2, 8>;
                    einsum_f16_x4_wide2 F16, einsum_bf16_x4_wide2 Bf16: Listed, Wide<4, 2, 8>;
                    einsum_f16_x4_wide1 F16, einsum_bf16_x4_wide1 Bf16: Listed, Wide<4, 3, 8>;
                    einsum_f16_x5_wide2 F16, einsum_bf16_x5_wide2 Bf16: Listed, Wide<5, 3, 8>;
                    einsum_f16_x5_wide1 F16, einsum_bf16_x5_wide1 Bf16: Listed, Wide<5, 4, 8>;
                    einsum_f32_x1 F32, einsum_f64_x1 F64, einsum_f16_x1 F16, einsum_bf16_x1 Bf16: Listed, Thin<1>;
                    einsum_f32_x2 F32, einsum_f64_x2 F64, einsum_f16_x2 F16, einsum_bf16_x2 Bf16: Listed, Thin<2>;
                    einsum_f32_x3 F32, einsum_f64_x3 F64, einsum_f16_x3 F16, einsum_bf16_x3 Bf16: Listed, Thin<3>;
                    einsum_f32_x4 F32, einsum_f64_x4 F64, einsum_f16_x4 F16, einsum_bf16_x4 Bf16: Listed, Thin<4>;
                    einsum_f32_x5 F32, einsum_f64_x5 F64, einsum_f16_x5 F16, einsum_bf16_x5 Bf16: Listed, Thin<5>;
                    einsum_f32_x1_across F32, einsum_f64_x1_across F64, einsum_f16_x1_across F16, einsum_bf16_x1_across Bf16: Listed, Across<1>;
                    einsum_f32_x2_across F32, einsum_f64_x2_across F64, einsum_f16_x2_across F16, einsum_bf16_x2_across Bf16: Listed, Across<2>;
                }
            }
        }
    };
}
