import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and one data node in this process. Arguments: folder, port of the name node. */
public class Hdfs {
  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration();
    conf.setBoolean("dfs.permissions.enabled", false);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, new File(args[0])).nameNodePort(Integer.parseInt(args[1])).numDataNodes(1).format(true).build();
    cluster.waitActive();
    new File(args[0], "ready").createNewFile();
    Thread.currentThread().join();
  }
}
