"""Feeds and stores in the form that other libraries expect. Each module imports its library, so import the one that you need.

hugging_face           FeedTrainer: transformers.Trainer with the batches of a feed, exact resume
lightning              FeedDataModule: feeds for training, validation and test, made for each rank
pytorch_forecasting    ForecastBatches: batches as a TimeSeriesDataSet makes them
neuralforecast         WindowBatches: batches for the models of NeuralForecast
gluonts                StoreEntries: the series of a store as a dataset of GluonTS
pairs                  PairDataset, to_arrays: (x, y) for skorch and scikit-learn
"""
