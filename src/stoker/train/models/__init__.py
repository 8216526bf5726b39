"""Models and losses by name, for trainings that a file describes.

    task          what is predicted from what, and where in a batch both are
    transformer, recurrent, connected    the networks: features [rows, steps, numbers] in, [rows, predicted steps, outputs] out
    head          from the state of steps to the prediction
    predictor     a batch in, a prediction in units of the store out: columns and scalers around a network
    losses        what a prediction is worth
    named, own    from the names of a configuration to all these, or to functions of the user's own

All are static in shape, so that a step can be captured as a graph and a model exported.
"""
