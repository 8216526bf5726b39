"""Operations of torch by class: products, reductions, copies; what is in no list, and no view, is elementwise. Names alone."""

from __future__ import annotations

GEMM = frozenset(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot _scaled_mm convolution _convolution convolution_backward cudnn_convolution "
    "mkldnn_convolution thnn_conv2d _slow_conv2d_forward _slow_conv2d_backward convolution_overrideable mkldnn_linear "
    "mkldnn_linear_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
    "_trilinear grouped_mm _grouped_mm cdist _cdist_forward _cdist_backward linalg_solve linalg_inv".split()
)
REDUCE = frozenset(
    "sum mean var std var_mean std_mean norm linalg_vector_norm _foreach_norm amax amin aminmax max min argmax argmin prod all "
    "any cumsum cumprod logcumsumexp logsumexp _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data "
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm "
    "native_batch_norm_backward _native_batch_norm_legit cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm "
    "_fused_rms_norm_backward rms_norm nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward mse_loss smooth_l1_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits _fft_r2c _fft_c2r _fft_c2c count_nonzero".split()
)
SEARCH = frozenset("median nanmedian quantile sort topk unique _unique2 searchsorted bincount histc kthvalue mode nonzero".split())
"""Of values by their order: they go through memory many times, and on a GPU far from its speed."""
COPY = frozenset(
    "copy_ _to_copy clone cat stack index index_put_ _index_put_impl_ index_select index_add_ index_copy_ gather scatter scatter_ "
    "scatter_add scatter_add_ embedding embedding_dense_backward _embedding_bag _embedding_bag_backward masked_select "
    "masked_scatter masked_fill masked_fill_ fill_ zero_ slice_backward select_backward constant_pad_nd roll flip repeat "
    "repeat_interleave tril triu take put_ narrow_copy im2col col2im pixel_shuffle pin_memory _pin_memory "
    "arange eye one_hot unfold_backward _foreach_zero_ _foreach_copy_".split()
)
LOOKUPS = frozenset("index index_select gather embedding take masked_select slice_backward select_backward".split())
"""Copies of, or into, a small part of their largest tensor: only the other one is moved."""
VIEWS = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided new_zeros view _unsafe_view reshape _reshape_alias as_strided t "
    "transpose permute expand expand_as squeeze unsqueeze select slice narrow split split_with_sizes chunk unbind detach detach_ "
    "alias resolve_conj resolve_neg contiguous to item _local_scalar_dense linear matmul zeros zeros_like ones ones_like full "
    "full_like is_nonzero result_type set_ resize_ unflatten flatten movedim swapaxes diagonal real imag lift_fresh conv1d conv2d "
    "conv3d layer_norm batch_norm group_norm softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd dropout "
    "scaled_dot_product_attention lstm gru rnn_tanh rnn_relu einsum unfold type_as broadcast_tensors cudnn_is_acceptable "
    "can_cast scalar_tensor multi_head_attention_forward record_stream "
    "max_pool2d avg_pool1d adaptive_avg_pool2d index_fill _conj conj mT mH ravel lift pad".split()
)
"""Of no work of their own: they look at memory another way, allocate it, or call another operation that works."""


def class_of(name: str) -> str | None:
    """gemm, reduce, search, copy or elementwise; None for what does no work itself, and for what is no operation of torch's."""
    space, _, operation = name.rpartition("::")
    if space != "aten":
        return None
    if operation in VIEWS:
        return None
    for kind, names in (("gemm", GEMM), ("reduce", REDUCE), ("search", SEARCH), ("copy", COPY)):
        if operation in names:
            return kind
    return "elementwise"
